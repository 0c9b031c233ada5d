// The arithmetic of `SegmentTree` on a CPU: sums, updates, draws. Plain C ABI, neither Python nor torch.
//
// A tree is one buffer of float64 and its number of leaves, laid out as segment_tree.py says: leaves first, root
// last, every level but the root's padded with a zero to an even length. Nothing is allocated or remembered between
// calls. Two calls may read one tree at the same time; a call that writes must have it alone.
//
// Callers have checked every argument: indices in [0, num_leaves), masses finite and not negative, prefixes in
// [0, total], uniforms in [0, 1]. `dasgrad_integers_within` and `dasgrad_reals_within` are there for that; they read
// their argument alone.
//
// Loops run over levels outside and draws inside, so that the many memory accesses of one level overlap, and the
// descent multiplies by 0 or 1 where a branch would be mispredicted every other time. Additions and products round
// one by one (build with -ffp-contract=off), which makes every bit that of the pure torch code.

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#if defined(_WIN32)
#define DASGRAD_EXPORT extern "C" __declspec(dllexport)
#else
#define DASGRAD_EXPORT extern "C" __attribute__((visibility("default")))
#endif

#if defined(__GNUC__)
#define DASGRAD_PREFETCH(address) __builtin_prefetch(address)
#else
#define DASGRAD_PREFETCH(address) static_cast<void>(address)
#endif

namespace {

constexpr int64_t kPrefetchedLevel = 1 << 10;  // from this size on, a level lies outside the first-level cache
constexpr int64_t kSkippedLevel = 1 << 15;     // from this size on, reading a node takes longer than adding two
constexpr int kMaxLevels = 64;
constexpr int64_t kBlock = 256;  // draws that go down together; their state stays in the first-level cache

// Where each level starts; level `num_levels - 1` is the root alone.
struct Levels {
  int num_levels;
  int64_t sizes[kMaxLevels];    // without padding
  int64_t offsets[kMaxLevels];

  explicit Levels(int64_t num_leaves) : num_levels(0) {
    int64_t offset = 0;
    for (int64_t size = num_leaves;; size = (size + 1) / 2) {
      sizes[num_levels] = size;
      offsets[num_levels++] = offset;
      if (size == 1) break;
      offset += size + size % 2;
    }
  }

  double total(const double* nodes) const { return nodes[offsets[num_levels - 1]]; }
};

void sum_levels_above(const Levels& levels, int level, double* nodes) {
  for (; level + 1 < levels.num_levels; ++level) {
    const double* __restrict children = nodes + levels.offsets[level];
    double* __restrict parents = nodes + levels.offsets[level + 1];
    for (int64_t j = 0; j < levels.sizes[level + 1]; ++j) parents[j] = children[2 * j] + children[2 * j + 1];
  }
}

// Recompute what stands above the given leaves. A level no larger than their number is summed whole instead, and so
// are those above it.
void sum_above_leaves(const Levels& levels, double* nodes, const int64_t* indices, int64_t num) {
  for (int level = 0; level + 1 < levels.num_levels; ++level) {
    if (levels.sizes[level + 1] <= num) return sum_levels_above(levels, level, nodes);
    const double* children = nodes + levels.offsets[level];
    double* parents = nodes + levels.offsets[level + 1];
    for (int64_t i = 0; i < num; ++i) {
      const int64_t j = indices[i] >> (level + 1);
      parents[j] = children[2 * j] + children[2 * j + 1];
    }
  }
}

// `value` where `take` is 1, zero where it is 0, without a branch.
inline double taken(double value, int64_t take) {
  int64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  bits &= -take;
  std::memcpy(&value, &bits, sizeof bits);
  return value;
}

// The leaf under each prefix. Remainders are used up.
//
// Large levels are limited by how many cache lines are read, so there every other level is not read but summed again
// from the one below, which has to be read anyway: the same addition, hence the same bits. What the next level needs
// is asked for ahead.
//
// The pointers are not declared restrict on purpose: gcc would then vectorise the inner loops, gathering element by
// element, which takes twice as long.
void descend(const Levels& levels, const double* nodes, double* remainders, int64_t* positions, int64_t num) {
  std::fill(positions, positions + num, int64_t{0});
  const auto is_skipped = [&](int level) { return level % 2 == 1 && levels.sizes[level] >= kSkippedLevel; };
  int level = levels.num_levels - 2;
  for (; level >= 0 && !is_skipped(level); --level) {
    const double* children = nodes + levels.offsets[level];
    const int next_level = std::max(level - (level > 0 && is_skipped(level - 1) ? 2 : 1), 0);
    const bool prefetch = levels.sizes[next_level] >= kPrefetchedLevel;
    const double* next = nodes + levels.offsets[next_level];
    const int generations = level - next_level;
    for (int64_t i = 0; i < num; ++i) {
      const double left = children[2 * positions[i]];
      const double right = children[2 * positions[i] + 1];
      const int go_right = (remainders[i] >= left) & (right > 0);
      remainders[i] -= left * go_right;
      positions[i] = 2 * positions[i] + go_right;
      if (prefetch) DASGRAD_PREFETCH(next + (positions[i] << generations));
    }
  }
  for (; level >= 1; level -= 2) {
    const double* grandchildren = nodes + levels.offsets[level - 1];
    const int64_t num_children = levels.sizes[level];
    const double* next = nodes + levels.offsets[std::max(level - 3, 0)];
    for (int64_t i = 0; i < num; ++i) {
      const int64_t child = 2 * positions[i];
      // The last child may be padding, without children of its own; the two read in their place belong to the next
      // level and do not count.
      const double* four = grandchildren + 2 * child;
      const double left = four[0] + four[1];
      const double right = four[2] + four[3];
      double remainder = remainders[i];
      const int64_t first = (remainder >= left) & (right > 0) & (child + 1 < num_children);
      remainder -= taken(left, first);
      const double* two = four + 2 * first;
      const int64_t second = (remainder >= two[0]) & (two[1] > 0);
      remainders[i] = remainder - taken(two[0], second);
      positions[i] = 2 * (child + first) + second;
      DASGRAD_PREFETCH(next + 4 * positions[i]);
    }
  }
}

// Prefixes that wait to go down one tree, and the draws they belong to.
struct Descent {
  int64_t num = 0;
  double remainders[kBlock];
  int64_t draws[kBlock];
  int64_t positions[kBlock];

  void add(double prefix, int64_t draw) {
    remainders[num] = prefix;
    draws[num++] = draw;
  }

  void run(const Levels& levels, const double* nodes, int64_t* indices) {
    descend(levels, nodes, remainders, positions, num);
    for (int64_t i = 0; i < num; ++i) indices[draws[i]] = positions[i];
    num = 0;
  }
};

}  // namespace

DASGRAD_EXPORT int dasgrad_integers_within(const int64_t* values, int64_t num, int64_t low, int64_t high) {
  int64_t num_within = 0;
  for (int64_t i = 0; i < num; ++i) num_within += (values[i] >= low) & (values[i] <= high);
  return num_within == num;
}

// NaN is not within.
DASGRAD_EXPORT int dasgrad_reals_within(const double* values, int64_t num, double low, double high) {
  int64_t num_within = 0;
  for (int64_t i = 0; i < num; ++i) num_within += (values[i] >= low) & (values[i] <= high);
  return num_within == num;
}

// Recompute all sums from the leaves; the total may be infinite.
DASGRAD_EXPORT double dasgrad_sum_levels(double* nodes, int64_t num_leaves) {
  const Levels levels(num_leaves);
  sum_levels_above(levels, 0, nodes);
  return levels.total(nodes);
}

// Write leaves in order, so that the last of duplicates wins, and recompute the sums above them. Returns the new
// total; if it overflows, infinity, and the tree is as it was; NaN, and the tree is as it was, where no memory was
// left to be able to go back.
DASGRAD_EXPORT double dasgrad_update(double* nodes, int64_t num_leaves, const int64_t* indices, const double* masses,
                                     int64_t num) {
  const Levels levels(num_leaves);
  double largest = 0;
  for (int64_t i = 0; i < num; ++i) largest = std::max(largest, masses[i]);
  // Far from overflow, which is nearly always, there is nothing to go back to.
  if (levels.total(nodes) + largest * static_cast<double>(num) <= DBL_MAX / 16) {
    for (int64_t i = 0; i < num; ++i) nodes[indices[i]] = masses[i];
    sum_above_leaves(levels, nodes, indices, num);
    return levels.total(nodes);
  }
  double* previous = static_cast<double*>(std::malloc(sizeof(double) * static_cast<size_t>(num)));
  if (previous == nullptr) return NAN;
  for (int64_t i = 0; i < num; ++i) {
    previous[i] = nodes[indices[i]];
    nodes[indices[i]] = masses[i];
  }
  sum_above_leaves(levels, nodes, indices, num);
  const double total = levels.total(nodes);
  if (!std::isfinite(total)) {
    for (int64_t i = num; i-- > 0;) nodes[indices[i]] = previous[i];  // backwards: the first of duplicates wins
    sum_above_leaves(levels, nodes, indices, num);
  }
  std::free(previous);
  return total;
}

// The leaves under `scale` times each prefix, and their masses unless `masses` is null. It may be `prefixes` itself.
DASGRAD_EXPORT void dasgrad_find(const double* nodes, int64_t num_leaves, const double* prefixes, double scale,
                                 int64_t num, int64_t* indices, double* masses) {
  const Levels levels(num_leaves);
  double remainders[kBlock];
  for (int64_t start = 0; start < num; start += kBlock) {
    const int64_t size = std::min(kBlock, num - start);
    for (int64_t i = 0; i < size; ++i) remainders[i] = prefixes[start + i] * scale;
    descend(levels, nodes, remainders, indices + start, size);
    if (masses == nullptr) continue;
    for (int64_t i = start; i < start + size; ++i) masses[i] = nodes[indices[i]];
  }
}

// The draws that uniforms decide, and their weights, for the mixture of `floor` of the target and the rest of the
// tree. `target` is a tree of as many leaves, or null for the uniform target. Stratified: draw i takes the i-th of
// `num` equal slices. A tree of zeros is never drawn from: then all draws are the target's and all weights 1.
// `weights` may be `uniforms` itself.
DASGRAD_EXPORT void dasgrad_draw(const double* nodes, const double* target, int64_t num_leaves, double floor,
                                 int stratified, const double* uniforms, int64_t num, int64_t* indices,
                                 double* weights) {
  const Levels levels(num_leaves);
  const double total = levels.total(nodes);
  const bool has_mass = total > 0;
  const double target_total = target == nullptr ? 1 : levels.total(target);
  const double leaves = static_cast<double>(num_leaves);
  Descent from_tree, from_target;
  for (int64_t start = 0; start < num; start += kBlock) {
    const int64_t end = std::min(start + kBlock, num);
    for (int64_t i = start; i < end; ++i) {
      const double u = stratified ? (static_cast<double>(i) + uniforms[i]) / static_cast<double>(num) : uniforms[i];
      if (has_mass && u >= floor) {
        from_tree.add(std::min(std::max((u - floor) / (1 - floor), 0.0), 1.0) * total, i);
        continue;
      }
      const double below = has_mass ? std::min(u / floor, 1.0) : u;
      if (target == nullptr) {
        indices[i] = std::min(static_cast<int64_t>(below * leaves), num_leaves - 1);
      } else {
        from_target.add(below * target_total, i);
      }
    }
    if (from_tree.num > 0) from_tree.run(levels, nodes, indices);
    if (from_target.num > 0) from_target.run(levels, target, indices);
    for (int64_t i = start; i < end; ++i) {
      const double mass = nodes[indices[i]];
      const double score = target == nullptr ? mass * leaves : mass / target[indices[i]];
      weights[i] = has_mass ? 1 / ((1 - floor) * score / total + floor) : 1;
    }
  }
}
