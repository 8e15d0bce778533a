"""Ctrl-C and the end of the process, in processes of their own."""

from __future__ import annotations

import pytest
from tests.workers.reading import script

pytestmark = pytest.mark.slow

SOON = 20.0  # seconds; most of them take one

SLOW = """
hang = threading.Event()
def slow(i):
    if i == 9:
        say("now")
        hang.wait(100)
    return i
"""

WAITING = {
    "workers": "for _ in loader_of(slow, workers=2).iterate(): pass",
    "one worker": "for _ in loader_of(slow, workers=1, prefetch=0).iterate(): pass",
    "the caller": "for _ in loader_of(slow, workers=0).iterate(): pass",
    "a timeout": "for _ in loader_of(slow, workers=2, timeout=90).iterate(): pass",
    "skipping": 'for _ in loader_of(slow, workers=2, on_error="skip").iterate(): pass',
    "a scan": """
loader = loader_of(slow, workers=2)
loader.scan_epoch(loader.init_state(0), 0, lambda c, b, m: (c + b.sum(), None))
""",
    "next_batch": """
loader = loader_of(slow, workers=2)
state = loader.init_state(0)
while True:
    _, state, _ = loader.next_batch(state)
""",
    "a training step": """
for batch, mask in loader_of(lambda i: i, 4000, 4, workers=4, prefetch=4).iterate():
    if int(batch[0]) == 40:
        say("now")
        time.sleep(100)
""",
    "with": """
with loader_of(slow, workers=2) as loader, loader.iterate() as iterator:
    for _ in iterator: pass
""",
}


@pytest.mark.parametrize("where", ["workers", "a scan"])
def test_control_c_is_a_keyboard_interrupt_and_the_process_ends(where: str) -> None:
    code, _, errors, seconds = script(SLOW + WAITING[where], interrupt=True)
    assert errors.rstrip().endswith("KeyboardInterrupt"), errors
    assert code != 0
    assert seconds < SOON


def test_control_c_is_a_keyboard_interrupt_wherever_it_arrives() -> None:
    code, output, errors, _ = script(f"""
{SLOW}
real = say
quiet = threading.Lock()
def say(word):  # interrupts from within, once, a little later
    if quiet.acquire(blocking=False):
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()

for where, code in {WAITING!r}.items():
    begin = time.monotonic()
    try:
        exec(compile(code, where, "exec"))
        raise SystemExit(where + ": not interrupted")
    except KeyboardInterrupt:
        assert time.monotonic() - begin < {SOON}, where
    hang.set()
    gc.collect()
    hang.clear()
    quiet.release()
print("all")
""")
    assert (code, errors) == (0, "")
    assert output.endswith("all\n")


IN_PROGRAM = {
    "jitted scan": """
run = jax.jit(lambda loader, state: loader.scan_epoch(state, 0, lambda c, b, m: (c, b)))
jax.block_until_ready(run(loader, loader.init_state(0)))
""",
    "jitted next_batch": """
step, state = jax.jit(loader.next_batch), loader.init_state(0)
while True:
    _, state, _ = step(state)
    jax.block_until_ready(state)
""",
}


@pytest.mark.parametrize(("program", "count"), list(zip(IN_PROGRAM, (0, 2), strict=True)))
def test_control_c_during_a_callback_ends_the_program_when_it_returns(
    program: str, count: int
) -> None:
    slow = SLOW.replace("100", "2")
    made = f"loader = loader_of(slow, workers={count}, prefetch=2)\n"
    code, _, errors, seconds = script(slow + made + IN_PROGRAM[program], interrupt=True)
    assert "KeyboardInterrupt" in errors, errors
    assert "Fatal" not in errors
    assert code not in (0, -6, -11)
    assert seconds < SOON


def test_after_control_c_the_state_is_right_and_reading_goes_on() -> None:
    code, output, errors, _ = script(
        SLOW
        + """
loader = loader_of(slow, workers=2, prefetch=2)
iterator, found = loader.iterate(), []
try:
    for batch, mask in iterator:
        found.append(batch.tolist())
except KeyboardInterrupt:
    say("caught " + str(iterator.state))
assert found == chunks(24, 4)[:2], found
hang.set()
found += [batch.tolist() for batch, mask in iterator]
assert found == chunks(24, 4), found
""",
        interrupt=True,
    )
    assert (code, errors) == (0, "")
    assert "offset=8" in output


def test_after_control_c_in_a_scan_the_loader_is_usable() -> None:
    code, output, errors, _ = script(
        SLOW
        + """
loader = loader_of(slow, workers=2, prefetch=2)
keep = lambda c, b, m: (c, b)
try:
    loader.scan_epoch(loader.init_state(0), 0, keep)
except KeyboardInterrupt:
    say("caught")
hang.set()
found = loader.scan_epoch(loader.init_state(0), 0, keep)[2].tolist()
assert found == chunks(24, 4), found
""",
        interrupt=True,
    )
    assert (code, errors) == (0, "")
    assert "caught" in output


ENDS = {
    "iterators on their way": """
first = loader_of(lambda i: i, 4000, 4, workers=4, prefetch=4)
for _ in first.iterate(steps=3): pass
loaders = [loader_of(lambda i: i, 4000, 4, workers=2, prefetch=2) for _ in range(8)]
iterators = [loader.iterate() for loader in loaders]
for iterator in iterators: next(iterator)
iterator.me = iterator
del iterator, iterators[-1]
state = first.init_state(0)
for _ in range(10):
    batch, state, mask = first.next_batch(state)
""",
    "hung elements": """
import logging
logging.getLogger("cereal").setLevel(logging.ERROR)
def read(i):
    if i in (5, 6): threading.Event().wait()
    return i
loader = loader_of(read, workers=2, prefetch=3, timeout=0.2, on_error="skip")
assert len(list(loader.iterate())) == 6
iterator = loader_of(read, workers=2, prefetch=3).iterate()
next(iterator)
""",
    "a jitted loop": """
def read(i):
    time.sleep(0.02)
    return i
loader = loader_of(read, 4000, 4, workers=2, prefetch=4)
step, state = jax.jit(loader.next_batch), loader.init_state(0)
for _ in range(4):
    batch, state, mask = step(state)
""",
    "a program that is still running": """
def read(i):
    time.sleep(0.05)
    return i
loader = loader_of(read, 400, 4, workers=2, prefetch=4)
run = jax.jit(lambda loader, state: loader.scan_epoch(state, 0, lambda c, b, m: (c, b), steps=10))
result = run(loader, loader.init_state(0))
""",
    "functions that run JAX": """
import jax.numpy as jnp
double = HostMapTransform(lambda x: jnp.asarray(x) * 2)
iterator = DataLoader([list(range(4000)), double, BatchTransform(4)], workers=4).iterate()
next(iterator)
""",
    "a thread that iterates": """
def run():
    for _ in loader_of(lambda i: i, 400, 4, workers=4, prefetch=4).iterate(): pass
threading.Thread(target=run).start()
for batch, mask in loader_of(lambda i: i, 4000, 4, workers=4, prefetch=4).iterate():
    sys.exit(0)
""",
}


@pytest.mark.parametrize("what", ENDS)
def test_a_process_ends_at_once_and_quietly_with(what: str) -> None:
    code, _, errors, seconds = script(ENDS[what])
    assert (code, errors) == (0, "")
    assert seconds < 2 * SOON


def test_a_loader_may_be_collected_while_its_crew_decides() -> None:
    code, output, errors, _ = script("""
loader = loader_of(lambda i: i, 4000, 4, workers=2, prefetch=2)
iterator = loader.iterate()
next(iterator)
crew = loader.running.service.crew
iterator.me = [iterator, loader]
del iterator, loader
def collect():
    with crew.lock:  # as a worker has it, whenever the collector happens to run there
        gc.collect()
    say("collected")
thread = threading.Thread(target=collect, daemon=True)
thread.start()
thread.join(10)
sys.stdout.flush()
os._exit(0)
""")
    assert (code, errors) == (0, "")
    assert "collected" in output, "the collector waits for a lock that its own thread has"


def test_a_forked_process_reads_elements_of_a_loader_that_was_used() -> None:
    code, output, errors, _ = script("""
import warnings
warnings.simplefilter("ignore")
loader = loader_of(lambda i: i, 24, 4, workers=2, prefetch=2)
iterator = loader.iterate()
next(iterator)
child = os.fork()
if child == 0:
    say("read " + str(loader.read_element(5)))
    os._exit(0)
os.waitpid(child, 0)
assert len(list(iterator)) == 5
""")
    assert (code, errors) == (0, "")
    assert "read 5" in output
