cimport cython
from kvitto.base cimport rawio
