"""The host device: the kernels' sources, compiled as C++ and run by templates/host on the CPU.

>>> from tilery.host import Library, Operand, compile    # doctest: +SKIP
>>> library = Library(compile({name: source}, folder / "kernels.so", check=True))    # doctest: +SKIP
"""

from .compiler import compile as compile
from .library import Library as Library
from .library import Operand as Operand
