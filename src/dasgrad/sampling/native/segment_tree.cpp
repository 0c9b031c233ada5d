// The arithmetic of `SegmentTree` on a CPU: sums, updates, draws. Plain C ABI, neither Python nor torch.
//
// A tree is one buffer of float64 and its number of leaves, laid out as segment_tree.py says: leaves first, root
// last, every level but the root's padded with a zero to an even length. Nothing is allocated or remembered between
// calls. Two calls may read one tree at the same time; a call that writes must have it alone.
//
// `dasgrad_update` checks what it is given. Elsewhere callers have: masses finite and not negative, prefixes in
// [0, total], uniforms in [0, 1]. `dasgrad_integers_within` and `dasgrad_reals_within` are there for that; they read
// their argument alone.
//
// Loops run over levels outside and draws inside, so that the many memory accesses of one level overlap, and the
// descent masks where a branch would be mispredicted every other time. Additions and products round one by one (build
// with -ffp-contract=off), which makes every bit that of the pure torch code.

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <utility>

#if defined(__SSE2__) && !defined(DASGRAD_PORTABLE)  // every x86-64 has it
#define DASGRAD_SSE2
#include <emmintrin.h>
#endif

#if defined(__linux__)
#include <sys/mman.h>
#endif

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

constexpr int kMaxLevels = 64;
constexpr int64_t kBlock = 256;  // draws that go down together; their state stays in the first-level cache
constexpr int64_t kFew = 1024;  // changes whose copy lies on the stack
constexpr int kCreditBits = 44;
constexpr int64_t kWhole = int64_t{1} << kCreditBits;  // a draw, in units of a node's credit
constexpr int kBlockLevels = 12;  // 2^12 leaves, and the sums above them, stay there too while they are summed

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

void sum_pairs(const double* __restrict children, double* __restrict parents, int64_t num) {
  for (int64_t j = 0; j < num; ++j) parents[j] = children[2 * j] + children[2 * j + 1];
}

void sum_levels_above(const Levels& levels, int level, double* nodes) {
  for (; level + 1 < levels.num_levels; ++level) {
    sum_pairs(nodes + levels.offsets[level], nodes + levels.offsets[level + 1], levels.sizes[level + 1]);
  }
}

// Recompute all sums, of new leaves unless `leaves` is null, block by block: a sum is read again while in the cache.
void sum_all_levels(const Levels& levels, double* nodes, const double* leaves) {
  constexpr int64_t kLeaves = int64_t{1} << kBlockLevels;
  const int num_lower = std::min(kBlockLevels, levels.num_levels - 1);
  for (int64_t start = 0; start < levels.sizes[0]; start += kLeaves) {
    if (leaves != nullptr) std::copy_n(leaves + start, std::min(kLeaves, levels.sizes[0] - start), nodes + start);
    for (int level = 0; level < num_lower; ++level) {
      const int64_t first = start >> (level + 1);
      const int64_t num = std::min(int64_t{1} << (kBlockLevels - level - 1), levels.sizes[level + 1] - first);
      sum_pairs(nodes + levels.offsets[level] + 2 * first, nodes + levels.offsets[level + 1] + first, num);
    }
  }
  sum_levels_above(levels, num_lower, nodes);
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

// A copy of the changes to be made: what was checked is what is written, even if another thread writes into the
// arguments meanwhile.
class Changes {
 public:
  explicit Changes(int64_t num) : num(num) {
    if (num <= kFew) return;
    void* many = std::malloc(static_cast<size_t>(num) * (sizeof(int64_t) + sizeof(double)));
    indices = static_cast<int64_t*>(many);
    masses = reinterpret_cast<double*>(indices + num);
  }
  ~Changes() {
    if (indices != few_indices_) std::free(indices);
  }
  Changes(const Changes&) = delete;
  Changes& operator=(const Changes&) = delete;

  // Return whether all indices are in [0, num_leaves) and all masses finite and not negative.
  bool copy(const int64_t* from_indices, const double* from_masses, int64_t num_leaves) {
    std::copy(from_indices, from_indices + num, indices);
    std::copy(from_masses, from_masses + num, masses);
    int64_t num_valid = 0;
    for (int64_t i = 0; i < num; ++i) num_valid += (indices[i] >= 0) & (indices[i] < num_leaves);
    for (int64_t i = 0; i < num; ++i) num_valid += (masses[i] >= 0) & (masses[i] <= DBL_MAX);
    return num_valid == 2 * num;
  }

  const int64_t num;
  int64_t* indices = few_indices_;  // null where there was no memory
  double* masses = few_masses_;

 private:
  int64_t few_indices_[kFew];
  double few_masses_[kFew];
};

// `value` where `take` is 1, zero where it is 0, without a branch.
inline double taken(double value, int64_t take) {
  int64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  bits &= -take;
  std::memcpy(&value, &bits, sizeof bits);
  return value;
}

// The leaf under each prefix, level by level. Remainders are used up.
//
// The pointers are not declared restrict on purpose: gcc would then vectorise the inner loop, gathering element by
// element, which takes twice as long.
void descend_portably(const Levels& levels, const double* nodes, double* remainders, int64_t* positions, int64_t num) {
  std::fill(positions, positions + num, int64_t{0});
  for (int level = levels.num_levels - 2; level >= 0; --level) {
    const double* children = nodes + levels.offsets[level];
    const double* next = nodes + levels.offsets[std::max(level - 1, 0)];
    for (int64_t i = 0; i < num; ++i) {
      const double left = children[2 * positions[i]];
      const double right = children[2 * positions[i] + 1];
      const int64_t go_right = (remainders[i] >= left) & (right > 0);
      remainders[i] -= taken(left, go_right);
      positions[i] = 2 * positions[i] + go_right;
      if (level > 0) DASGRAD_PREFETCH(next + 2 * positions[i]);
    }
  }
}

#if defined(DASGRAD_SSE2)

using Two = __m128d;  // one number for each of two draws

inline Two choose(Two right, Two a, Two b) { return _mm_or_pd(_mm_andnot_pd(right, a), _mm_and_pd(right, b)); }

// All ones where the remainder lies in the right child, which takes the left mass off it. A right child of mass zero
// turns the left mass into NaN for the comparison, which then fails.
inline Two go_right(Two& remainder, Two left, Two right) {
  const Two barred = _mm_cmple_pd(right, _mm_setzero_pd());
  const Two mask = _mm_cmple_pd(_mm_or_pd(left, barred), remainder);
  remainder = _mm_sub_pd(remainder, _mm_and_pd(left, mask));
  return mask;
}

// Three levels down at once, for two draws: each from a node to one of its eight descendants there, at `a` and `b`.
// The two levels between are not read but summed again, by the additions that made them, hence to the same bits.
inline void step_down(const double* a, const double* b, double* remainders, int64_t* positions) {
  Two eight[8], pairs[4];
  for (int j = 0; j < 4; ++j) {
    const Two of_a = _mm_loadu_pd(a + 2 * j), of_b = _mm_loadu_pd(b + 2 * j);
    eight[2 * j] = _mm_unpacklo_pd(of_a, of_b);
    eight[2 * j + 1] = _mm_unpackhi_pd(of_a, of_b);
    pairs[j] = _mm_add_pd(eight[2 * j], eight[2 * j + 1]);
  }
  Two remainder = _mm_loadu_pd(remainders);
  const Two first = go_right(remainder, _mm_add_pd(pairs[0], pairs[1]), _mm_add_pd(pairs[2], pairs[3]));
  const Two second = go_right(remainder, choose(first, pairs[0], pairs[2]), choose(first, pairs[1], pairs[3]));
  const Two left = choose(second, choose(first, eight[0], eight[4]), choose(first, eight[2], eight[6]));
  const Two right = choose(second, choose(first, eight[1], eight[5]), choose(first, eight[3], eight[7]));
  const Two third = go_right(remainder, left, right);
  __m128i position = _mm_loadu_si128(reinterpret_cast<const __m128i*>(positions));
  for (const Two mask : {first, second, third}) {  // as an integer a mask is -1 or 0
    position = _mm_sub_epi64(_mm_add_epi64(position, position), _mm_castpd_si128(mask));
  }
  _mm_storeu_si128(reinterpret_cast<__m128i*>(positions), position);
  _mm_storeu_pd(remainders, remainder);
}

// The same as `descend_portably`, in fewer cache lines: what a draw of a large tree waits for is memory, so only every
// third level is read, eight nodes side by side, and what the next step needs is asked for ahead. The first step may
// start above the root, as if that had zeros for neighbours: it then goes left, which changes nothing. The last nodes
// of a level get such neighbours here.
void descend(const Levels& levels, const double* nodes, double* remainders, int64_t* positions, int64_t num) {
  const int64_t num_even = num - num % 2;
  std::fill(positions, positions + num_even, int64_t{0});
  for (int level = std::max(levels.num_levels - 2, 0) / 3 * 3; level >= 0; level -= 3) {
    const double* children = nodes + levels.offsets[level];
    const double* next = nodes + levels.offsets[std::max(level - 3, 0)];
    const int64_t num_whole = levels.sizes[level] / 8;
    double last[8] = {};
    std::copy(children + 8 * num_whole, children + levels.sizes[level], last);
    const auto eight_at = [&](int64_t j) { return j < num_whole ? children + 8 * j : last; };
    for (int64_t i = 0; i < num_even; i += 2) {
      step_down(eight_at(positions[i]), eight_at(positions[i + 1]), remainders + i, positions + i);
      if (level == 0) continue;
      DASGRAD_PREFETCH(next + 8 * positions[i]);
      DASGRAD_PREFETCH(next + 8 * positions[i + 1]);
    }
  }
  descend_portably(levels, nodes, remainders + num_even, positions + num_even, num - num_even);
}

#else

void descend(const Levels& levels, const double* nodes, double* remainders, int64_t* positions, int64_t num) {
  descend_portably(levels, nodes, remainders, positions, num);
}

#endif

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

// What is drawn from: `floor` of the target, a tree of as many leaves or null for the uniform one, and the rest of a
// tree with mass.
struct Mixture {
  const Levels& levels;
  const double* nodes;
  const double* target;
  double floor, total, leaves;
  double of_target;  // by which a node's target counts beside (1 - floor) times its mass

  Mixture(const Levels& levels, const double* nodes, const double* target, double floor)
      : levels(levels), nodes(nodes), target(target), floor(floor), total(levels.total(nodes)),
        leaves(static_cast<double>(levels.sizes[0])),
        of_target(floor * total / (target == nullptr ? leaves : levels.total(target))) {}

  double weight_of(int64_t leaf) const {
    const double score = target == nullptr ? nodes[leaf] * leaves : nodes[leaf] / target[leaf];
    return 1 / ((1 - floor) * score / total + floor);
  }

  // Of the children on one level.
  class Shares {
   public:
    Shares(const Mixture& mixture, int level)
        : nodes_(mixture.nodes + mixture.levels.offsets[level]),
          target_(mixture.target == nullptr ? nullptr : mixture.target + mixture.levels.offsets[level]),
          num_leaves_(mixture.levels.sizes[0]), num_full_(num_leaves_ >> level), level_(level),
          of_mass_(1 - mixture.floor), of_target_(mixture.of_target),
          of_full_(of_target_ * static_cast<double>(int64_t{1} << level)) {}

    // What a parent's left child has of its probability, in units of 1/kWhole. A child that can be drawn at all has at
    // least one, and one that cannot none; so neither has any where the parent cannot be drawn.
    int64_t of_left(int64_t parent) const {
      const double left = at(2 * parent), right = at(2 * parent + 1), both = left + right;
      const double of_both = both > 0 ? left / both : 0;
      const int64_t share = static_cast<int64_t>(of_both * static_cast<double>(kWhole));
      return std::min(std::max(share, static_cast<int64_t>(left > 0)), kWhole - static_cast<int64_t>(right > 0));
    }

    void prefetch(int64_t parent) const { DASGRAD_PREFETCH(nodes_ + 2 * parent); }

   private:
    // The probability of a node, up to a factor that all have.
    double at(int64_t node) const {
      const double mass = of_mass_ * nodes_[node];
      if (target_ != nullptr) return mass + of_target_ * target_[node];
      return mass + (node < num_full_ ? of_full_ : of_target_ * leaves_under(node));
    }

    double leaves_under(int64_t node) const {
      const int64_t first = std::min(node << level_, num_leaves_);
      return static_cast<double>(std::min((node + 1) << level_, num_leaves_) - first);
    }

    const double* nodes_;
    const double* target_;
    int64_t num_leaves_, num_full_;
    int level_;
    double of_mass_, of_target_, of_full_;
  };
};

// Credits lie level by level, those of the leaves' parents first, without padding.
struct CreditOffsets {
  int64_t of_parents[kMaxLevels];  // by the level of their children

  explicit CreditOffsets(const Levels& levels) {
    int64_t offset = 0;
    for (int level = 0; level + 1 < levels.num_levels; ++level) {
      of_parents[level] = offset;
      offset += levels.sizes[level + 1];
    }
  }
};

// Shares of left children on the upper levels, whose nodes many of `num` draws visit: computed once a node, not once a
// draw. Without memory for it there is none, and nothing else changes.
class ShareTable {
 public:
  ShareTable(const Mixture& mixture, const CreditOffsets& offsets, int64_t num)
      : first(mixture.levels.num_levels - 1), offsets_(offsets) {
    const Levels& levels = mixture.levels;
    int64_t length = 0;
    int lowest = first;
    while (lowest > 0 && kVisits * levels.sizes[lowest] <= num) length += levels.sizes[lowest--];
    if (length == 0) return;
    shares_ = static_cast<int64_t*>(std::malloc(static_cast<size_t>(length) * sizeof(int64_t)));
    if (shares_ == nullptr) return;
    first = lowest;
    for (int level = first; level + 1 < levels.num_levels; ++level) {
      const Mixture::Shares shares(mixture, level);
      int64_t* of_parents = shares_ + start_of(level);
      for (int64_t j = 0; j < levels.sizes[level + 1]; ++j) of_parents[j] = shares.of_left(j);
    }
  }
  ~ShareTable() { std::free(shares_); }
  ShareTable(const ShareTable&) = delete;
  ShareTable& operator=(const ShareTable&) = delete;

  const int64_t* of_level(int level) const { return shares_ + start_of(level); }

  int first;  // the lowest level of children that is in the table; the root's, if none is

 private:
  static constexpr int64_t kVisits = 2;  // of a node, on average, that make its share worth keeping

  int64_t start_of(int level) const { return offsets_.of_parents[level] - offsets_.of_parents[first]; }

  const CreditOffsets& offsets_;
  int64_t* shares_ = nullptr;
};

// Each draw from its node to a child, by the node's credit; `visit` is told which.
template <typename Share, typename Visit>
inline void walk_down(int64_t* credits, int64_t* positions, int64_t num, Share share_of_left, Visit visit) {
  for (int64_t i = 0; i < num; ++i) {
    const int64_t parent = positions[i];
    const int64_t credit = credits[parent] + share_of_left(parent);
    credits[parent] = credit & (kWhole - 1);
    positions[i] = 2 * parent + 1 - (credit >> kCreditBits);
    visit(positions[i]);
  }
}

// The same from the root, whose credit need not go through memory from draw to draw.
inline void walk_down_from_root(int64_t& root, int64_t share, int64_t* positions, int64_t num) {
  int64_t credit = root;
  for (int64_t i = 0; i < num; ++i) {
    credit += share;
    positions[i] = 1 - (credit >> kCreditBits);
    credit &= kWhole - 1;
  }
  root = credit;
}

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

// Ask for large pages under a buffer that was not written to yet: fewer page faults while it is filled, and fewer
// misses of the address cache afterwards. Does nothing where there are none.
DASGRAD_EXPORT void dasgrad_prefer_large_pages(double* nodes, int64_t num_nodes) {
#if defined(MADV_HUGEPAGE)
  constexpr uintptr_t kLargePage = uintptr_t{1} << 21;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(nodes) + kLargePage - 1) & ~(kLargePage - 1);
  const uintptr_t end = reinterpret_cast<uintptr_t>(nodes + num_nodes) & ~(kLargePage - 1);
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
  static_cast<void>(nodes);
  static_cast<void>(num_nodes);
#endif
}

// Write all leaves, unless `leaves` is null, and recompute all sums from them; the total may be infinite.
DASGRAD_EXPORT double dasgrad_sum_levels(double* nodes, int64_t num_leaves, const double* leaves) {
  const Levels levels(num_leaves);
  sum_all_levels(levels, nodes, leaves);
  return levels.total(nodes);
}

// Write leaves in order, so that the last of duplicates wins, and recompute the sums above them. Returns the new
// total; or else the tree is as it was: infinity, if the total would overflow; -1, if an index or a mass is out of
// range; NaN, if no memory was left.
DASGRAD_EXPORT double dasgrad_update(double* nodes, int64_t num_leaves, const int64_t* indices, const double* masses,
                                     int64_t num) {
  const Levels levels(num_leaves);
  Changes changes(num);
  if (changes.indices == nullptr) return NAN;
  if (!changes.copy(indices, masses, num_leaves)) return -1;
  double largest = 0;
  for (int64_t i = 0; i < num; ++i) largest = std::max(largest, changes.masses[i]);
  // Far from overflow, which is nearly always, there is nothing to go back to.
  if (levels.total(nodes) + largest * static_cast<double>(num) <= DBL_MAX / 16) {
    for (int64_t i = 0; i < num; ++i) nodes[changes.indices[i]] = changes.masses[i];
    sum_above_leaves(levels, nodes, changes.indices, num);
    return levels.total(nodes);
  }
  for (int64_t i = 0; i < num; ++i) std::swap(nodes[changes.indices[i]], changes.masses[i]);
  sum_above_leaves(levels, nodes, changes.indices, num);
  const double total = levels.total(nodes);
  if (!std::isfinite(total)) {
    // Backwards, so that the first of duplicates, which holds the oldest mass, comes last.
    for (int64_t i = num; i-- > 0;) nodes[changes.indices[i]] = changes.masses[i];
    sum_above_leaves(levels, nodes, changes.indices, num);
  }
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
  const Mixture mixture(levels, nodes, target, floor);
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
    for (int64_t i = start; i < end; ++i) weights[i] = has_mass ? mixture.weight_of(indices[i]) : 1;
  }
}

// Draws that are balanced over all calls, as balance.py says, and their weights. The tree has mass.
DASGRAD_EXPORT void dasgrad_balance(const double* nodes, const double* target, int64_t num_leaves, double floor,
                                    int64_t* credits, int64_t num, int64_t* indices, double* weights) {
  const Levels levels(num_leaves);
  const Mixture mixture(levels, nodes, target, floor);
  const CreditOffsets offsets(levels);
  const ShareTable table(mixture, offsets, num);
  for (int64_t start = 0; start < num; start += kBlock) {
    const int64_t size = std::min(kBlock, num - start);
    std::fill_n(indices + start, size, int64_t{0});
    for (int level = levels.num_levels - 2; level >= 0; --level) {
      int64_t* of_parents = credits + offsets.of_parents[level];
      const int64_t* of_next = level > 0 ? credits + offsets.of_parents[level - 1] : nullptr;
      if (level < table.first) {
        const Mixture::Shares shares(mixture, level), next(mixture, std::max(level - 1, 0));
        walk_down(of_parents, indices + start, size, [&](int64_t parent) { return shares.of_left(parent); },
                  [&](int64_t parent) {
                    if (of_next == nullptr) return;
                    next.prefetch(parent);
                    DASGRAD_PREFETCH(of_next + parent);
                  });
        continue;
      }
      const int64_t* shares = table.of_level(level);
      if (level == levels.num_levels - 2) {
        walk_down_from_root(*of_parents, *shares, indices + start, size);
      } else {
        walk_down(of_parents, indices + start, size, [&](int64_t parent) { return shares[parent]; },
                  [](int64_t) {});
      }
    }
    for (int64_t i = start; i < start + size; ++i) weights[i] = mixture.weight_of(indices[i]);
  }
}

// Credits as they were before draws of these leaves, in any order, from the same tree.
DASGRAD_EXPORT void dasgrad_take_back(const double* nodes, const double* target, int64_t num_leaves, double floor,
                                      int64_t* credits, const int64_t* indices, int64_t num) {
  const Levels levels(num_leaves);
  const Mixture mixture(levels, nodes, target, floor);
  const CreditOffsets offsets(levels);
  const ShareTable table(mixture, offsets, num);
  for (int level = 0; level + 1 < levels.num_levels; ++level) {
    int64_t* of_parents = credits + offsets.of_parents[level];
    const auto give_back = [&](auto share_of_left) {
      for (int64_t i = 0; i < num; ++i) {
        const int64_t parent = indices[i] >> (level + 1);
        of_parents[parent] = (of_parents[parent] - share_of_left(parent)) & (kWhole - 1);
      }
    };
    if (level < table.first) {
      const Mixture::Shares shares(mixture, level);
      give_back([&](int64_t parent) { return shares.of_left(parent); });
    } else {
      const int64_t* shares = table.of_level(level);
      give_back([&](int64_t parent) { return shares[parent]; });
    }
  }
}
