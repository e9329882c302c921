"""The pass over a tensor in host memory: a few lines of C, which the machine's compiler builds.

They read every element once, run below PyTorch's dispatcher (so neither autograd nor modes such as
those of selective checkpointing see them), and let go of Python's lock where that pays. They are
built anew in each process, which takes a fraction of a second, since a shared cache could hold code
for another machine or from somebody else.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from fastvideo.hooks.reduction import FIELDS, real_numbers

if TYPE_CHECKING:
    from torch import Tensor

_COMPILERS: Final = ("cc", "gcc", "clang")
_TIMEOUT_S: Final = 60
_ROW_BYTES: Final = 8 * len(FIELDS)
_DTYPES: Final = (torch.float32, torch.float64, torch.bfloat16)
_LONG: Final = 1 << 17

_SOURCE: Final = r"""
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { BLOCK = 2048, LANES = 32 };
typedef struct { double abs_sum, sum, m2, min, max, count, nan, posinf, neginf; } Row;

/* Joins another part of `n` elements to a row (Chan, Golub and LeVeque 1983). */
static void join(Row *row, double abs_sum, double sum, double m2, double lo, double hi, double n) {
  if (n == 0) return;
  double total = row->count + n;
  double gap = sum / n - (row->count > 0 ? row->sum / row->count : 0);
  row->m2 += m2 + gap * gap * row->count * n / total;
  row->abs_sum += abs_sum;
  row->sum += sum;
  row->count = total;
  if (lo < row->min) row->min = lo;
  if (hi > row->max) row->max = hi;
}

/* A block is read from memory once; its second pass, for the variance, finds it in the cache.
   Lanes are what a compiler turns into vectors. A sum that is not finite sends the block to
   `careful`, which leaves out what is not. */
#define DEFINE(T, MAGNITUDE)                                                                     \
  static void careful_##T(const T *x, int64_t n, Row *row) {                                     \
    double a = 0, s = 0, q = 0, lo = INFINITY, hi = -INFINITY, count = 0;                        \
    for (int64_t i = 0; i < n; i++) {                                                            \
      double v = x[i];                                                                           \
      if (isnan(v)) row->nan++;                                                                  \
      else if (isinf(v)) { if (v > 0) row->posinf++; else row->neginf++; }                       \
      else { a += fabs(v); s += v; count++; if (v < lo) lo = v; if (v > hi) hi = v; }            \
    }                                                                                            \
    if (count == 0) return;                                                                      \
    double mean = s / count;                                                                     \
    for (int64_t i = 0; i < n; i++)                                                              \
      if (isfinite(x[i])) q += (x[i] - mean) * (x[i] - mean);                                    \
    join(row, a, s, q, lo, hi, count);                                                           \
  }                                                                                              \
  static void block_##T(const T *x, int64_t n, Row *row) {                                       \
    T a[LANES] = {0}, s[LANES] = {0}, q[LANES] = {0}, lo[LANES], hi[LANES];                      \
    for (int l = 0; l < LANES; l++) { lo[l] = INFINITY; hi[l] = -INFINITY; }                     \
    int64_t whole = n - n % LANES;                                                               \
    for (int64_t i = 0; i < whole; i += LANES)                                                   \
      for (int l = 0; l < LANES; l++) {                                                          \
        T v = x[i + l];                                                                          \
        a[l] += MAGNITUDE(v);                                                                    \
        s[l] += v;                                                                               \
        lo[l] = v < lo[l] ? v : lo[l];                                                           \
        hi[l] = v > hi[l] ? v : hi[l];                                                           \
      }                                                                                          \
    double A = 0, S = 0, Q = 0, low = INFINITY, high = -INFINITY;                                \
    for (int l = 0; l < LANES; l++) {                                                            \
      A += a[l];                                                                                 \
      S += s[l];                                                                                 \
      if (lo[l] < low) low = lo[l];                                                              \
      if (hi[l] > high) high = hi[l];                                                            \
    }                                                                                            \
    T mean = whole ? (T)(S / (double)whole) : 0;                                                 \
    for (int64_t i = 0; i < whole; i += LANES)                                                   \
      for (int l = 0; l < LANES; l++) q[l] += (x[i + l] - mean) * (x[i + l] - mean);             \
    for (int l = 0; l < LANES; l++) Q += q[l];                                                   \
    if (!isfinite(A) || !isfinite(Q)) { careful_##T(x, n, row); return; }                        \
    join(row, A, S, Q, low, high, (double)whole);                                                \
    careful_##T(x + whole, n - whole, row);                                                      \
  }

DEFINE(float, fabsf)
DEFINE(double, fabs)

static const Row NO_ELEMENTS = {.min = INFINITY, .max = -INFINITY};

#define EACH_BLOCK(NAME) *row = NO_ELEMENTS; for (int64_t i = 0; i < n; i += BLOCK) {            \
    int64_t m = n - i < BLOCK ? n - i : BLOCK; NAME; }

void reduce_float32(const float *x, int64_t n, Row *row) {
  EACH_BLOCK(block_float(x + i, m, row))
}

void reduce_float64(const double *x, int64_t n, Row *row) {
  EACH_BLOCK(block_double(x + i, m, row))
}

void reduce_bfloat16(const uint16_t *x, int64_t n, Row *row) {
  float wide[BLOCK];
  EACH_BLOCK({
    for (int64_t j = 0; j < m; j++) {
      uint32_t bits = (uint32_t)x[i + j] << 16;
      memcpy(wide + j, &bits, sizeof bits);
    }
    block_float(wide, m, row);
  })
}
"""


class CompiledReducer:
    """The pass in C.

    Raises:
        OSError: There is no compiler, or what it built cannot be loaded.
        subprocess.SubprocessError: The compiler failed.
    """

    def __init__(self) -> None:
        holding, releasing = _build()
        self._quick = {dtype: _function(holding, dtype) for dtype in _DTYPES}
        self._long = {dtype: _function(releasing, dtype) for dtype in _DTYPES}

    def rows(self, numel: int) -> int:  # noqa: ARG002 - of the protocol
        """Returns 1."""
        return 1

    def reduce(self, tensor: Tensor, table: Tensor, row: int) -> None:
        """Writes the row of a tensor; see :class:`fastvideo.hooks.reduction.Reducer`."""
        if tensor.dtype not in self._quick or not tensor.is_contiguous():
            with torch.no_grad():
                tensor = real_numbers(tensor).contiguous()
                if tensor.dtype not in self._quick:
                    tensor = tensor.float()
        numel = tensor.numel()
        functions = self._quick if numel < _LONG else self._long
        functions[tensor.dtype](tensor.data_ptr(), numel, table.data_ptr() + row * _ROW_BYTES)


def _function(library: ctypes.CDLL, dtype: torch.dtype) -> Any:  # noqa: ANN401 - of ctypes
    function = getattr(library, f"reduce_{str(dtype).removeprefix('torch.')}")
    function.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
    function.restype = None
    return function


def _build() -> tuple[ctypes.CDLL, ctypes.CDLL]:
    """Returns the functions twice: holding Python's lock while they run, and letting go of it.

    To get the lock back can take longer than to read a small tensor.
    """
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        message = f"there is no C compiler ({', '.join(_COMPILERS)})"
        raise FileNotFoundError(message)
    with tempfile.TemporaryDirectory(prefix="fastvideo-") as directory:
        source, library = Path(directory, "reduction.c"), Path(directory, "reduction.so")
        source.write_text(_SOURCE, encoding="ascii")
        for tuning in (["-march=native"], []):  # not all compilers know their machine
            done = subprocess.run(
                [compiler, "-O3", *tuning, "-shared", "-fPIC", source, "-o", library, "-lm"],
                capture_output=True,
                timeout=_TIMEOUT_S,
                check=False,
            )
            if done.returncode == 0:
                # Both stay loaded when the file is gone.
                return ctypes.PyDLL(str(library)), ctypes.CDLL(str(library))
        done.check_returncode()
    message = f"{compiler} built nothing"
    raise OSError(message)
