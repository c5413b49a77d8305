"""Code that runs a product on several threads of the OpenMP runtime."""

from __future__ import annotations

from llvmlite import ir

from engine.kernels import attend
from engine.kernels.emit import I32, I64, PTR, VOID, Code, Value
from engine.kernels.product import KINDS
from engine.kernels.rows import SOURCES
from engine.kernels.task import TILE, Field

ALONE = 12  # up to so many rows are made integers by one thread: two regions would cost more
GATED = 2  # of rows with a gate, which are dear


def entries(module: ir.Module, gnu: bool) -> None:
    """Emit `run_KIND` (task, x, threads) for every kind: rows to integers, then all tiles."""
    rows = _all_rows(module)
    prepare = _share(module, "rows", Field.M, 1, rows)
    for kind in KINDS:
        product = module.globals[kind]
        share = _share(module, kind, Field.N, TILE, product)
        c = Code(module, f"run_{kind}", VOID, [PTR, PTR, I64], local=False)
        task, x, threads = c.args
        m = c.load(task, Field.M.at, I64)
        both = c.room(16)  # what a region is given: the task and x
        c.store(task, both, 0)
        c.store(x, both, 8)
        alone = c.b.icmp_signed("<=", threads, I64(1))
        gated = c.b.icmp_signed(">=", c.load(task, Field.SOURCE.at, I64), I64(SOURCES.index("silu")))
        few = c.b.icmp_signed("<", m, c.b.select(gated, I64(GATED), I64(ALONE)))
        with c.b.if_else(c.b.or_(alone, few)) as (one, many):
            with one:
                c.b.call(rows, [task, x, I64(0), m])
            with many:
                _fork(c, module, prepare, both, threads, gnu)
        with c.b.if_else(alone) as (one, many):
            with one:
                c.b.call(product, [task, I64(0), _count(c, task, Field.N, TILE)])
            with many:
                _fork(c, module, share, both, threads, gnu)
        c.b.ret_void()


def _all_rows(module: ir.Module) -> Value:
    """`rows` (task, x, first, last): by what the task says stands in front."""
    c = Code(module, "rows", VOID, [PTR, PTR, I64, I64])
    done = c.function.append_basic_block("done")
    switch = c.b.switch(c.load(c.args[0], Field.SOURCE.at, I64), done)
    for i, source in enumerate(SOURCES):
        case = c.function.append_basic_block(source)
        switch.add_case(I64(i), case)
        c.b.position_at_end(case)
        c.b.call(module.globals[f"rows_{source}"], list(c.args))
        c.b.branch(done)
    c.b.position_at_end(done)
    c.b.ret_void()
    return c.function


def _count(c: Code, task: Value, field: Field | attend.Field, unit: int) -> Value:
    return c.b.udiv(c.add(c.load(task, field.at, I64), unit - 1), I64(unit))


def _share(module: ir.Module, name: str, field: Field | attend.Field, unit: int, work: Value, times: int = 1) -> Value:
    """One thread's share of the rows, tiles or items: the same number each, in order."""
    c = Code(module, f"share_{name}", VOID, [PTR])
    task, x = c.load(c.args[0], 0, PTR), c.load(c.args[0], 8, PTR)
    me = c.b.zext(c.call("omp_get_thread_num", I32), I64)
    team = c.b.zext(c.call("omp_get_num_threads", I32), I64)
    count = c.mul(_count(c, task, field, unit), times)
    first, last = (c.b.udiv(c.b.mul(count, i), team) for i in (me, c.add(me, 1)))
    c.b.call(work, [task, x, first, last] if name == "rows" else [task, first, last])
    c.b.ret_void()
    return c.function


def _fork(c: Code, module: ir.Module, share: Value, both: Value, threads: Value, gnu: bool) -> None:
    count = c.b.trunc(threads, I32)
    if gnu:
        c.call("GOMP_parallel", VOID, share, both, count, I32(0))
        return
    micro = module.globals.get(f"micro_{share.name}")
    if micro is None:
        inner = Code(module, f"micro_{share.name}", VOID, [PTR, PTR, PTR])
        inner.b.call(share, [inner.args[2]])
        inner.b.ret_void()
        micro = inner.function
    where = c.room(24)  # ident_t: four numbers, then a text nobody reads
    for i, number in enumerate((0, 2, 0, 0, 0, 0)):
        c.store(I32(number), where, 4 * i)
    me = c.call("__kmpc_global_thread_num", I32, where)
    c.call("__kmpc_push_num_threads", VOID, where, me, count)
    kind = ir.FunctionType(VOID, [PTR, I32, PTR], var_arg=True)
    fork = module.globals.get("__kmpc_fork_call") or ir.Function(module, kind, "__kmpc_fork_call")
    c.b.call(fork, [where, I32(1), micro, both])


def attention(module: ir.Module, shape: attend.Shape, gnu: bool) -> None:
    """Emit `run_attend` (task, unused, threads): place the rows, then attend, item by item."""
    place, work = attend.place(module, shape), attend.attend(module, shape)
    share = _share(module, "attend", attend.Field.M, 1, work, shape.kv_heads)
    c = Code(module, "run_attend", VOID, [PTR, PTR, I64], local=False)
    task, unused, threads = c.args
    c.b.call(place, [task])
    both = c.room(16)
    c.store(task, both, 0)
    c.store(unused, both, 8)
    with c.b.if_else(c.b.icmp_signed("<=", threads, I64(1))) as (one, many):
        with one:
            c.b.call(work, [task, I64(0), c.mul(c.load(task, attend.Field.M.at, I64), shape.kv_heads)])
        with many:
            _fork(c, module, share, both, threads, gnu)
    c.b.ret_void()


def listed(module: ir.Module) -> None:
    """Emit `run_list` (entries, count): one kernel after the other, without coming back to Python. An entry is four 64-bit numbers:
    address of the kernel, of its task, of x, and the number of threads."""
    c = Code(module, "run_list", VOID, [PTR, I64], local=False)
    entries, count = c.args
    with c.loop(0, count) as each:
        entry = c.at(entries, c.mul(each.index, 32))
        kernel = c.load(entry, 0, ir.FunctionType(VOID, [PTR, PTR, I64]).as_pointer())
        c.b.call(kernel, [c.load(entry, 8, PTR), c.load(entry, 16, PTR), c.load(entry, 24, I64)])
    c.b.ret_void()
