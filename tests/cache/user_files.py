"""What a user's file may hold, for the digest of code."""

# What a user's file may hold, before and after an edit: 1 becomes 2.
FILES = {
    "a constant in its code": "def fn(x): return x * VALUE",
    "a lambda": "fn = lambda x: x * VALUE",
    "a value of its closure": "def make(k): return lambda x: x * k\nfn = make(VALUE)",
    "a default": "def fn(x, k=VALUE): return x * k",
    "a keyword's default": "def fn(x, *, k=VALUE): return x * k",
    "a global number": "K = VALUE\ndef fn(x): return x * K",
    "a global array": "K = np.full(3, VALUE)\ndef fn(x): return x * K",
    "a global JAX array": "K = jnp.full(3, VALUE)\ndef fn(x): return x * K",
    "a global dict": "K = {1: 'a', 'b': [VALUE]}\ndef fn(x): return x * K['b'][0]",
    "a global set of words": "K = {'one', 'two', 'more', 'VALUE'}\ndef fn(x): return x * len(K)",
    "a global object": "K = types.SimpleNamespace(v=VALUE)\ndef fn(x): return x * K.v",
    "words that it looks for": "def fn(x): return x if 'a' in {'a', 'b', 'VALUE'} else -x",
    "a helper": "def helper(x): return x * VALUE\ndef fn(x): return helper(x)",
    "a helper's helper": """
def inner(x): return x * VALUE
def helper(x): return inner(x)
def fn(x): return helper(x)""",
    "a function inside of it": """
def fn(x):
    def inside(y): return y * VALUE
    return inside(x)""",
    "a name that a function inside of it uses": """
K = VALUE
def fn(x): return (lambda y: y * K)(x)""",
    "a function that calls itself": "def fn(x, n=3): return x * VALUE if n == 0 else fn(x, n - 1)",
    "two that call each other": """
def fn(x, n=3): return x if n == 0 else other(x, n)
def other(x, n): return fn(x * VALUE, n - 1)""",
    "a local one that calls itself": """
def make():
    def loop(x, n=3): return x * VALUE if n == 0 else loop(x, n - 1)
    return loop
fn = make()""",
    "a function under jit": "fn = jax.jit(lambda x: x * VALUE)",
    "a function under vmap": "fn = jax.vmap(lambda x: x * VALUE)",
    "a function under grad": "fn = jax.grad(lambda x: x * x * VALUE)",
    "a helper under jit": "helper = jax.jit(lambda x: x * VALUE)\ndef fn(x): return helper(x)",
    "a decorated function": """
def twice(f):
    @functools.wraps(f)
    def call(*args): return f(f(*args))
    return call
@twice
def fn(x): return x * VALUE""",
    "an argument of a partial": """
def scale(k, x): return x * k
fn = functools.partial(scale, VALUE)""",
    "the function of a partial": """
def scale(k, x): return x * k * VALUE
fn = functools.partial(scale, 3)""",
    "an argument of a JAX Partial": """
def scale(k, x): return x * k
fn = jax.tree_util.Partial(scale, VALUE)""",
    "the function of a JAX Partial": """
def scale(k, x): return x * k * VALUE
fn = jax.tree_util.Partial(scale, 3)""",
    "the state of a method's object": """
class Scale:
    def __init__(self, k): self.k = k
    def apply(self, x): return x * self.k
fn = Scale(VALUE).apply""",
    "the code of a method": """
class Scale:
    def apply(self, x): return x * VALUE
fn = Scale().apply""",
    "the code of a callable object": """
class Scale:
    def __call__(self, x): return x * VALUE
fn = Scale()""",
    "the code of a class that it refers to": """
class Scale:
    @staticmethod
    def apply(x): return x * VALUE
def fn(x): return Scale.apply(x)""",
    "a function of a module that it refers to": """
helpers = types.ModuleType("helpers")
exec("def scale(x): return x * VALUE", helpers.__dict__)
def fn(x): return helpers.scale(x)""",
    "a class constant that is a tuple": """
class Scale:
    K = (VALUE,)
    def __call__(self, x): return x * self.K[0]
fn = Scale()""",
    "a class constant that is a list": """
class Scale:
    K = [VALUE]
def fn(x): return x * Scale.K[0]""",
    "a class constant that is a dict": """
class Scale:
    K = {"k": {"inner": VALUE}}
    def __call__(self, x): return x * self.K["k"]["inner"]
fn = Scale()""",
    "a class constant that is an array": """
class Scale:
    K = np.array([VALUE])
    def __call__(self, x): return x * self.K
fn = Scale()""",
    "a class constant of a parent": """
class Parent:
    K = (VALUE,)
class Scale(Parent):
    def __call__(self, x): return x * self.K[0]
fn = Scale()""",
    "a class constant beside a lock": """
class Scale:
    A = threading.Lock()
    K = (VALUE,)
    def __call__(self, x): return x * self.K[0]
fn = Scale()""",
    "a member of an enum": """
class Kind(enum.Enum):
    A = VALUE
    B = 7
def fn(x): return x * Kind.A.value""",
    "an enum's member that it holds": """
class Kind(enum.Enum):
    A = VALUE
def make(kind): return lambda x: x * kind.value
fn = make(Kind.A)""",
    "a property that is computed once": """
class Scale:
    @functools.cached_property
    def k(self): return VALUE
    def __call__(self, x): return x * self.k
fn = Scale()""",
    "a constant that is an object of the class": """
class Scale:
    def __init__(self, k): self.k = k
Scale.DEFAULT = Scale(VALUE)
def fn(x): return x * Scale.DEFAULT.k""",
    "a value in a slot": """
class Scale:
    __slots__ = ("k",)
    def __init__(self, k): self.k = k
    def __call__(self, x): return x * self.k
fn = Scale(VALUE)""",
    "a decorating object": """
class Times:
    def __init__(self, fn, k): functools.update_wrapper(self, fn); self.k = k
    def __call__(self, x): return self.__wrapped__(x) * self.k
fn = Times(lambda x: x, VALUE)""",
    "an attribute of the function": """
def fn(x): return x * fn.k
fn.k = VALUE""",
    "the method of a dict": "fn = {1: VALUE}.get",
    "a function under np.vectorize": "def h(x): return x * VALUE\nfn = np.vectorize(h)",
    "a method under np.vectorize": """
class Scale:
    K = (VALUE,)
    def apply(self, x): return x * self.K[0]
fn = np.vectorize(Scale().apply)""",
    "a function in a library's object": """
def h(x): return x * VALUE
fn = collections.deque([h])""",
    "a function in a partial in a library's object": """
def h(k, x): return x * k * VALUE
fn = operator.methodcaller("get", functools.partial(h, 3))""",
    "a function imported inside of it": """
module("elsewhere", "def h(x): return x * VALUE")
def fn(x):
    from elsewhere import h
    return h(x)""",
    "a module imported inside of it": """
module("elsewhere", "def h(x): return x * VALUE")
def fn(x):
    import elsewhere
    return elsewhere.h(x)""",
    "a module of a module": """
module("elsewhere", "def h(x): return x * VALUE")
module("between", "import elsewhere as deep")
import between
def fn(x): return between.deep.h(x)""",
    "an array of objects": "K = np.array([None, VALUE], object)\ndef fn(x): return x * K[1]",
    "a list with a name": """
class Scales(list):
    pass
K = Scales([1])
K.k = VALUE
def fn(x): return x * K.k""",
    "the weights of a model": """
@cereal.pytree_dataclass
class Model:
    weight: jax.Array
    def __call__(self, x): return x * self.weight
fn = Model(jnp.float32(VALUE))""",
    "the parts of a model": """
@cereal.pytree_dataclass
class Model:
    parts: tuple[jax.Array, ...]
    def __call__(self, x): return x * self.parts[0]
fn = Model((jnp.float32(VALUE),))""",
    "the code of a model": """
@cereal.pytree_dataclass
class Model:
    weight: jax.Array
    def __call__(self, x): return x * self.weight * VALUE
fn = Model(jnp.float32(3))""",
    "the function that a model holds": """
@cereal.pytree_dataclass
class Model:
    weight: jax.Array
    activation: object = cereal.static_field()
    def __call__(self, x): return self.activation(x * self.weight)
fn = Model(jnp.float32(3), lambda x: x * VALUE)""",
    "a field of one's own source": """
@cereal.pytree_dataclass
class Own(cereal.IndexedSource):
    scale: int = cereal.static_field()
    def __len__(self): return 8
    def element_spec(self): return jax.ShapeDtypeStruct((), jnp.int32)
    def take(self, indices): return indices * self.scale
fn = Own(VALUE)""",
    "how one's own source reads": """
@cereal.pytree_dataclass
class Own(cereal.IndexedSource):
    def __len__(self): return 8
    def element_spec(self): return jax.ShapeDtypeStruct((), jnp.int32)
    def take(self, indices): return indices * VALUE
fn = Own()""",
}
