"""Code that runs a product on several threads of the OpenMP runtime."""

from __future__ import annotations

from llvmlite import ir

from engine.kernels.emit import I32, I64, PTR, VOID, Code, Value
from engine.kernels.product import TILE

M, N, K = (8 * (9 + i) for i in range(3))  # byte offsets in a task
TASK_BYTES = 8 * 13


def entry(module: ir.Module, kind: str, gnu: bool) -> None:
    """Emit the exported `run_KIND` (task, x, x is float32, threads)."""
    share = _share(module, kind)
    c = Code(module, f"run_{kind}", VOID, [PTR, PTR, I64, I64], local=False)
    task, x, wide, threads = c.args
    parts, starts, steps = (c.load(task, 8 * i, PTR) for i in (3, 4, 5))
    arguments = [x, parts, starts, steps, c.load(task, M, I64), c.load(task, K, I64)]
    with c.b.if_else(c.b.icmp_signed("!=", wide, I64(0))) as (f32, bf16):
        with f32:
            c.b.call(module.globals["quantize_f32"], arguments)
        with bf16:
            c.b.call(module.globals["quantize_bf16"], arguments)
    with c.b.if_else(c.b.icmp_signed("<=", threads, I64(1))) as (alone, together):
        with alone:
            c.b.call(module.globals[kind], [task, I64(0), _tiles(c, task)])
        with together:
            _fork(c, module, kind, share, task, threads, gnu)
    c.b.ret_void()


def _tiles(c: Code, task: Value) -> Value:
    return c.b.udiv(c.add(c.load(task, N, I64), TILE - 1), I64(TILE))


def _share(module: ir.Module, kind: str) -> Value:
    """One thread's share: the same number of tiles each, in order."""
    c = Code(module, f"share_{kind}", VOID, [PTR])
    task = c.args[0]
    me = c.b.zext(c.call("omp_get_thread_num", I32), I64)
    team = c.b.zext(c.call("omp_get_num_threads", I32), I64)
    tiles = _tiles(c, task)
    first, last = (c.b.udiv(c.b.mul(tiles, i), team) for i in (me, c.add(me, 1)))
    c.b.call(module.globals[kind], [task, first, last])
    c.b.ret_void()
    return c.function


def _fork(c: Code, module: ir.Module, kind: str, share: Value, task: Value, threads: Value, gnu: bool) -> None:
    count = c.b.trunc(threads, I32)
    if gnu:
        c.call("GOMP_parallel", VOID, share, task, count, I32(0))
        return
    micro = Code(module, f"micro_{kind}", VOID, [PTR, PTR, PTR])
    micro.b.call(share, [micro.args[2]])
    micro.b.ret_void()
    where = c.room(24)  # ident_t: four numbers, then a text nobody reads
    for i, number in enumerate((0, 2, 0, 0, 0, 0)):
        c.store(I32(number), where, 4 * i)
    me = c.call("__kmpc_global_thread_num", I32, where)
    c.call("__kmpc_push_num_threads", VOID, where, me, count)
    kind_of = ir.FunctionType(VOID, [PTR, I32, PTR], var_arg=True)
    fork = module.globals.get("__kmpc_fork_call") or ir.Function(module, kind_of, "__kmpc_fork_call")
    c.b.call(fork, [where, I32(1), micro.function, task])
