"""The engine thread: owns all state with a tensor in it, takes commands, puts events. The only try/except around tensors is here.

Everything that imports torch happens on this thread (DESIGN 10). A failed command leaves what was loaded as it was, unless `lost` says
otherwise; the thread itself never dies of a command.
"""

from __future__ import annotations

from collections import deque
from queue import Empty, SimpleQueue
from time import perf_counter

from engine.environment import BEGUN_S  # isort: skip
from engine import costs
from engine.catalog import stored
from engine.catalog.specs import NONE, ModelSpec
from engine.client import Outbox, Stopper
from engine.cuda.tune import recorded_bytes
from engine.decoder import pages
from engine.decoder.load import resolve_scheme
from engine.decoder.opened import Opened
from engine.drafters import registry
from engine.errors import EngineError
from engine.experience import Experience
from engine.failures import failure
from engine.fitting import open_target, relieve
from engine.machine import device_memory, free_memory, resolve_device, use_physical_cores
from engine.protocol import (
    Command,
    Failed,
    Generate,
    Load,
    Loading,
    LoadOptions,
    Look,
    Looked,
    Memory,
    Notice,
    Ready,
    SwapDrafter,
    Unload,
    Unloaded,
    Weigh,
    Weighed,
)
from engine.room import plan
from engine.session import Session
from engine.speculation.control import Controller

IMPORT_S = perf_counter() - BEGUN_S
Queue = SimpleQueue[tuple[int, Command] | None]


def serve(commands: Queue, outbox: Outbox, stopper: Stopper) -> None:
    """Run until None comes."""
    Engine(commands, outbox, stopper).run()


class Engine:
    """See the module."""

    def __init__(self, commands: Queue, outbox: Outbox, stopper: Stopper) -> None:
        self._commands, self._out, self._stopper = commands, outbox, stopper
        self._waiting: deque[tuple[int, Command]] = deque()
        self._closing = False
        self._session: Session | None = None
        self._opened: Opened | None = None
        self._options = LoadOptions()
        self._experience: Experience | None = None
        self._spec = NONE
        self._draft_quant = ""
        use_physical_cores()

    # --- commands ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Take one command after the other."""
        while (item := self._next()) is not None:
            number, command = item
            reply = command.reply if isinstance(command, Generate) else None
            lost: tuple[str, ...] = ()
            try:
                self._handle(number, command)
            except BaseException as error:
                if isinstance(command, Load) and self._session is None:
                    lost = ("target",)
                told, given_up = relieve(error, self._session, self._memory, self._drop_drafter, self._unload)
                self._out.put(failure(told, reply, lost or given_up))
        self._unload()

    def _next(self) -> tuple[int, Command] | None:
        if self._closing:
            return None
        while not self._waiting and self._commands.empty() and pages.move():
            pass
        return self._waiting.popleft() if self._waiting else self._commands.get()

    def _poll(self) -> None:
        """Take in what has arrived, without waiting."""
        try:
            while True:
                item = self._commands.get_nowait()
                if item is None:
                    self._closing = True
                    return
                self._waiting.append(item)
        except Empty:
            return

    def _handle(self, number: int, command: Command) -> None:
        match command:
            case Load():
                self._load(number, command)
            case SwapDrafter():
                self._swap(number, command)
            case Generate():
                self._generate(number, command)
            case Weigh():
                self._weigh(number, command)
            case Look():
                self._look(command)
            case Unload():
                self._unload()
                self._out.put(Unloaded())

    def _progress(self, stage: str, done: int, total: int) -> None:
        self._out.put(Loading(stage, done, total, "B" if total > 10_000 else ""))

    # --- loading -----------------------------------------------------------------------------------------------------

    def _load(self, number: int, command: Load) -> None:
        begun = perf_counter()
        self._out.put(Loading("Looking at the model"))
        options = command.options
        device = resolve_device(options.device)
        resolve_scheme(options.quant, options.head, device)  # names that do not exist
        resolve_scheme(options.draft_quant, "auto", device)
        path = stored.target(command.target)
        self._unload()  # a mistake in the command costs nothing
        context, drafter, notes = plan(command, device)
        self._experience = Experience(path, device)
        opened = open_target(command.target, path, device, options, context, self._progress, lambda: self._stopper.stopped(number))
        self._opened, self._options, self._spec = opened, options, command.target
        notes += opened.notes
        self._session = Session(opened.target, opened.tokenizer, opened.sampling, command.target.stop + opened.tokenizer.stop, Controller())
        problem: Failed | None = None
        try:
            notes += self._build(number, drafter, command.method)
            self._measure(number)
        except BaseException as error:
            problem = failure(error, None, ("drafter",))
            self._drop_drafter()
        if problem is not None:
            self._out.put(problem)
        self._out.put(self._ready(notes, perf_counter() - begun))

    def _drop_drafter(self) -> None:
        session = self._session
        if session is not None and session.loaded.drafter is not None:
            session.loaded.drafter.close()
            session.loaded.drafter, self._draft_quant = None, ""

    def _build(self, number: int, drafter: ModelSpec, method: str) -> tuple[str, ...]:
        """Put a drafter beside the target; the old one stays when this fails."""
        session, opened = self._session, self._opened
        assert session is not None
        assert opened is not None
        notes: tuple[str, ...] = ()
        if session.target.max_nodes == 0 and drafter.kind != "none":
            notes, drafter = (f"Without a drafter: {self._spec.name} cannot take back tokens.",), NONE
        beside = registry.Beside(
            self._spec,
            opened.tokenizer,
            session.target.vocab_size,
            session.target.context,
            opened.device,
            opened.scheme,
            opened.sampling.temperature or 0.0,
            session.target,
        )
        device = opened.device if self._options.draft_device == "auto" else resolve_device(self._options.draft_device)
        built = registry.build(drafter, method, beside, device, self._options, self._progress, lambda: self._stopper.stopped(number))
        if session.loaded.drafter is not None:
            session.loaded.drafter.close()
        session.loaded.drafter = built.drafter
        self._draft_quant = built.quant
        free_memory()
        return notes + built.notes

    def _measure(self, number: int) -> None:
        """What a pass costs by its number of rows, on this machine, with this model: the controller decides by it."""
        session = self._session
        assert session is not None
        while self._options.settle and not self._stopper.stopped(number) and pages.move():
            pass
        session.control.most = 0
        if session.loaded.drafter is not None:
            name = f"{self._spec.name}, {self._opened.scheme}, {self._opened.head_scheme}" if self._opened is not None else ""
            target, control, said = session.target, session.control, Loading("Measuring this machine")
            costs.measure(target, session.loaded.drafter, control, lambda: self._out.put(said), name)

    def _swap(self, number: int, command: SwapDrafter) -> None:
        if self._session is None:
            raise EngineError(
                "No model is loaded, so there is nothing to draft for.", "Load a target first: /model NAME.", kind="not_loaded"
            )
        begun = perf_counter()
        notes = self._build(number, command.drafter, command.method)
        self._measure(number)
        self._out.put(self._ready(notes, perf_counter() - begun))

    def _unload(self) -> None:
        self._drop_drafter()
        if self._session is not None:
            self._session.target.close()
        self._session = self._opened = None
        free_memory()

    def _ready(self, notes: tuple[str, ...], load_s: float) -> Ready:
        session, opened = self._session, self._opened
        assert session is not None
        assert opened is not None
        assert self._experience is not None
        name, method = registry.describe(session.loaded.drafter)
        memory = self._memory(session)
        self._experience.memory(opened, memory)
        return Ready(
            target=self._spec.name,
            drafter=name,
            method=method,
            device=str(opened.device),
            quant=opened.scheme,
            head=opened.head_scheme,
            draft_quant=self._draft_quant,
            context=session.target.context,
            sampling=opened.sampling,
            exact=session.target.exact,
            memory=memory,
            notes=notes,
            load_s=load_s,
            import_s=IMPORT_S,
            opens_thoughts=opened.tokenizer.opens_thoughts,
        )

    def _memory(self, session: Session) -> Memory:
        assert self._opened is not None
        own = session.memory()
        used, total = device_memory(self._opened.device)
        return Memory(own.target, own.drafter, own.kv, used, total, recorded_bytes(self._opened.device))

    # --- a reply -----------------------------------------------------------------------------------------------------

    def _generate(self, number: int, command: Generate) -> None:
        session = self._session
        if session is None or self._opened is None:
            raise EngineError("No model is loaded.", "Load one first: /model NAME.", kind="not_loaded")

        move_some = pages.Share()

        def between() -> None:
            """Hot swap: a drafter that was asked for during the reply takes over at the next step."""
            move_some()
            self._poll()
            while self._waiting and isinstance(self._waiting[0][1], SwapDrafter):
                other, swap = self._waiting.popleft()
                try:
                    self._handle(other, swap)
                except Exception as error:  # a failed swap is no failure of the reply
                    self._out.put(failure(error, None, ()))

        def cancelled() -> bool:
            return self._stopper.stopped(number) or self._closing

        done = session.reply(command, self._out.put, cancelled, between)
        assert self._experience is not None
        self._experience.speed(self._spec.name, self._opened, done, session.tally)
        self._experience.memory(self._opened, self._memory(session))
        for text in session.control.take_notices():
            self._out.put(Notice(text, command.reply))
        self._out.put(done)

    def _look(self, command: Look) -> None:
        session = self._loaded_session()
        text, tokens, reused = session.look(command)
        own = "model" if session.tokenizer.has_template else "none"
        template = "models.toml" if self._spec.template else own
        self._out.put(Looked(text, tokens, reused, session.target.context, template))

    def _loaded_session(self) -> Session:
        if self._session is None:
            raise EngineError("No model is loaded.", "Load one first: /model NAME.", kind="not_loaded")
        return self._session

    def _weigh(self, number: int, command: Weigh) -> None:
        self._out.put(Weighed(self._loaded_session().weigh(command, lambda: self._stopper.stopped(number) or self._closing)))
