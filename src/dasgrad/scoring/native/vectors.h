// What the compiler and the machine have to offer, and vectors of numbers that the compiler maps to registers.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(_WIN32)
#define DASGRAD_EXPORT extern "C" __declspec(dllexport)
#else
#define DASGRAD_EXPORT extern "C" __attribute__((visibility("default")))
#endif

// One build runs everywhere and uses the widest vectors the machine has.
#if defined(DASGRAD_CLONES)
#elif defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__linux__)
#define DASGRAD_CLONES __attribute__((target_clones("avx512f", "arch=haswell", "default")))
#else
#define DASGRAD_CLONES
#endif
// Vectors wider than the machine's would be kept in memory, so functions that name them are built for each width.
#if defined(__x86_64__) && defined(__GNUC__)
#define DASGRAD_WIDE __attribute__((target("avx512f")))
#define DASGRAD_HALF __attribute__((target("avx2,fma")))
#ifndef DASGRAD_WIDEST
#define DASGRAD_WIDEST 64  // bytes; less for a test of narrower machines on a wider one
#endif
#define DASGRAD_HAS_WIDE (DASGRAD_WIDEST >= 64 && __builtin_cpu_supports("avx512f"))
#define DASGRAD_HAS_HALF \
  (DASGRAD_WIDEST >= 32 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
#else
#define DASGRAD_WIDE
#define DASGRAD_HALF
#define DASGRAD_HAS_WIDE 0
#define DASGRAD_HAS_HALF 0
#endif
#if defined(__GNUC__)
#define DASGRAD_INLINE inline __attribute__((always_inline))
#define DASGRAD_UNROLLED _Pragma("GCC unroll 8")  // so that arrays of vectors are registers
#else
#define DASGRAD_INLINE inline
#define DASGRAD_UNROLLED
#endif

namespace {

constexpr int64_t kSpan = 1024;  // numbers that are summed in their own type before these sums are in double

// The upper half of a float.
struct Bfloat16 {
  uint16_t bits;
};

DASGRAD_INLINE float widen(Bfloat16 number) {
  const uint32_t bits = uint32_t(number.bits) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
DASGRAD_INLINE float widen(float number) { return number; }
DASGRAD_INLINE double widen(double number) { return number; }

// Has the second cache fetch what will be read soon; an address past the end does no harm.
DASGRAD_INLINE void bring_near([[maybe_unused]] const void* address) {
#if defined(__GNUC__)
  __builtin_prefetch(address, 0, 2);
#endif
}

// A vector of numbers that the compiler maps to a register of so many bytes.
template <typename Real, int kBytes = 64>
struct Lanes {
  static constexpr int kSize = kBytes / sizeof(Real);
#if defined(__GNUC__)
  typedef Real Vector __attribute__((vector_size(kBytes)));
  Vector value;
  DASGRAD_INLINE void add_product(Real scale, const Lanes& other) { value += scale * other.value; }
  DASGRAD_INLINE void add_product(const Lanes& a, const Lanes& b) { value += a.value * b.value; }
  DASGRAD_INLINE void add(const Lanes& other) { value += other.value; }
  DASGRAD_INLINE void square_into(Lanes& out) const { out.value = value * value; }
  DASGRAD_INLINE void keep_larger(const Lanes& other) { value = other.value > value ? other.value : value; }
  DASGRAD_INLINE void multiply_and_add(Real factor, Real term) { value = value * factor + term; }
#else
  Real value[kSize];
  DASGRAD_INLINE void add_product(Real scale, const Lanes& other) {
    for (int k = 0; k < kSize; ++k) value[k] += scale * other.value[k];
  }
  DASGRAD_INLINE void add_product(const Lanes& a, const Lanes& b) {
    for (int k = 0; k < kSize; ++k) value[k] += a.value[k] * b.value[k];
  }
  DASGRAD_INLINE void add(const Lanes& other) {
    for (int k = 0; k < kSize; ++k) value[k] += other.value[k];
  }
  DASGRAD_INLINE void square_into(Lanes& out) const {
    for (int k = 0; k < kSize; ++k) out.value[k] = value[k] * value[k];
  }
  DASGRAD_INLINE void keep_larger(const Lanes& other) {
    for (int k = 0; k < kSize; ++k) value[k] = other.value[k] > value[k] ? other.value[k] : value[k];
  }
  DASGRAD_INLINE void multiply_and_add(Real factor, Real term) {
    for (int k = 0; k < kSize; ++k) value[k] = value[k] * factor + term;
  }
#endif
  DASGRAD_INLINE void clear() { std::memset(&value, 0, sizeof value); }
  DASGRAD_INLINE void load(const Real* from) { std::memcpy(&value, from, sizeof value); }
  DASGRAD_INLINE void store(Real* to) const { std::memcpy(to, &value, sizeof value); }
  // By halves: one long chain of additions would take longer than the products.
  DASGRAD_INLINE double sum() const {
#if defined(__GNUC__)
    if constexpr (kBytes > 16) {
      Lanes<Real, kBytes / 2> halves[2];
      std::memcpy(halves, &value, sizeof halves);
      halves[0].add(halves[1]);
      return halves[0].sum();
    }
#endif
    Real lanes[kSize];
    std::memcpy(lanes, &value, sizeof lanes);
    for (int half = kSize / 2; half > 0; half /= 2)
      for (int k = 0; k < half; ++k) lanes[k] += lanes[k + half];
    return lanes[0];
  }
};

template <typename Real, int kBytes>
DASGRAD_INLINE void load(Lanes<Real, kBytes>& lanes, const Real* from) {
  lanes.load(from);
}

template <int kBytes>
DASGRAD_INLINE void load(Lanes<float, kBytes>& lanes, const Bfloat16* from) {
  constexpr int kSize = Lanes<float, kBytes>::kSize;
  uint16_t halves[kSize];
  uint32_t wholes[kSize];
  std::memcpy(halves, from, sizeof halves);
  for (int k = 0; k < kSize; ++k) wholes[k] = uint32_t(halves[k]) << 16;
  std::memcpy(&lanes.value, wholes, sizeof wholes);
}

// e^x of x <= 0, to a few units in the last place.
template <typename Real>
DASGRAD_INLINE void take_powers_of_e(Lanes<Real>& lanes) {
#if defined(__GNUC__)
  if constexpr (sizeof(Real) == 4) {
    typedef int32_t Integers __attribute__((vector_size(64)));
    typedef typename Lanes<Real>::Vector Vector;
    const Vector x = lanes.value, least = x * 0 - 87.0f, bounded = x < least ? least : x;
    const Integers exponent = __builtin_convertvector(bounded * 1.44269504f - 0.5f, Integers);
    const Vector whole = __builtin_convertvector(exponent, Vector);
    const Vector rest = bounded - whole * 0.693359375f + whole * 2.12194440e-4f;
    Vector series = rest * 1.9875691500e-4f + 1.3981999507e-3f;
    series = series * rest + 8.3334519073e-3f;
    series = series * rest + 4.1665795894e-2f;
    series = series * rest + 1.6666665459e-1f;
    series = series * rest + 5.0000001201e-1f;
    series = series * rest * rest + rest + 1.0f;
    const Integers bits = (exponent + 127) << 23;
    Vector scale;
    std::memcpy(&scale, &bits, sizeof scale);
    lanes.value = x < least ? x * 0 : series * scale;
    return;
  }
#endif
  for (int k = 0; k < Lanes<Real>::kSize; ++k) lanes.value[k] = std::exp(lanes.value[k]);
}

}  // namespace
