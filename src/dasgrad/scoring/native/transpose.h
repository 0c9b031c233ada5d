// Matrices one after the other, each transposed.

#pragma once

#include "vectors.h"

namespace {

constexpr int64_t kTile = 8;  // rows: as many as a cache holds that are a power of two apart

template <typename Number>
DASGRAD_INLINE void transpose(const Number* from, int64_t number, int64_t num_rows, int64_t num_columns, Number* to) {
  for (int64_t i = 0; i < number; ++i, from += num_rows * num_columns, to += num_rows * num_columns)
    for (int64_t row = 0; row < num_rows; row += kTile)
      for (int64_t column = 0; column < num_columns; column += kTile) {
        const int64_t rows = num_rows - row < kTile ? num_rows - row : kTile;
        const int64_t columns = num_columns - column < kTile ? num_columns - column : kTile;
        const Number* source = from + row * num_columns + column;
        Number* target = to + column * num_rows + row;
        for (int64_t c = 0; c < columns; ++c)
          for (int64_t r = 0; r < rows; ++r) target[c * num_rows + r] = source[r * num_columns + c];
      }
}

}  // namespace
