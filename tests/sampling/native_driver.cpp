// Drives segment_tree.cpp through every size at which its layout changes shape, with buffers of exactly the length
// the layout asks for, so that the sanitizers see any step outside. Draws and sums are compared with plain loops.

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

extern "C" {
int dasgrad_integers_within(const int64_t*, int64_t, int64_t, int64_t);
int dasgrad_reals_within(const double*, int64_t, double, double);
void dasgrad_prefer_large_pages(double*, int64_t);
double dasgrad_sum_levels(double*, int64_t, const double*);
double dasgrad_update(double*, int64_t, const int64_t*, const double*, int64_t);
void dasgrad_find(const double*, int64_t, const double*, double, int64_t, int64_t*, double*);
void dasgrad_draw(const double*, const double*, int64_t, double, int, const double*, int64_t, int64_t*, double*);
void dasgrad_balance(const double*, const double*, int64_t, double, int64_t*, int64_t, int64_t*, double*);
void dasgrad_take_back(const double*, const double*, int64_t, double, int64_t*, const int64_t*, int64_t);
}

namespace {

void require(bool condition, const char* what, int64_t size) {
  if (condition) return;
  std::fprintf(stderr, "%s fails at size %lld\n", what, static_cast<long long>(size));
  std::exit(1);
}

std::vector<int64_t> level_offsets(int64_t size, int64_t* length) {
  std::vector<int64_t> offsets{0};
  *length = 0;
  for (; size > 1; size = (size + 1) / 2) offsets.push_back(*length += size + size % 2);
  *length += 1;
  return offsets;
}

int64_t slow_find(const std::vector<double>& nodes, const std::vector<int64_t>& offsets, double prefix) {
  int64_t j = 0;
  for (size_t level = offsets.size() - 1; level-- > 0;) {
    const double left = nodes[offsets[level] + 2 * j], right = nodes[offsets[level] + 2 * j + 1];
    const bool go_right = prefix >= left && right > 0;
    if (go_right) prefix -= left;
    j = 2 * j + go_right;
  }
  return j;
}

void check(int64_t size, std::mt19937_64& random) {
  std::uniform_real_distribution<double> uniform(0, 1);
  int64_t length;
  const std::vector<int64_t> offsets = level_offsets(size, &length);
  std::vector<double> nodes(length), target(length);
  dasgrad_prefer_large_pages(nodes.data(), length);
  for (int64_t i = 0; i < size; ++i) {
    nodes[i] = uniform(random) < 0.3 ? 0 : std::ldexp(uniform(random), static_cast<int>(uniform(random) * 2000) - 1070);
    target[i] = nodes[i] > 0 ? uniform(random) : 0;
  }
  nodes[size - 1] = target[size - 1] = 5e-324;
  const double total = dasgrad_sum_levels(nodes.data(), size, nullptr);
  dasgrad_sum_levels(target.data(), size, nullptr);
  require(total == nodes.back() && total > 0, "sum_levels", size);
  const std::vector<double> leaves(nodes.begin(), nodes.begin() + size);
  std::vector<double> filled(length);
  require(dasgrad_sum_levels(filled.data(), size, leaves.data()) == total && filled == nodes, "new leaves", size);

  for (const int64_t num : {int64_t{0}, int64_t{1}, int64_t{255}, int64_t{257}, int64_t{700}}) {
    std::vector<double> points(num), found_masses(num);
    std::vector<int64_t> found(num);
    for (int64_t i = 0; i < num; ++i) points[i] = i % 7 == 0 ? 1.0 : i % 7 == 1 ? 0.0 : uniform(random);
    dasgrad_find(nodes.data(), size, points.data(), total, num, found.data(), found_masses.data());
    for (int64_t i = 0; i < num; ++i) {
      require(found[i] == slow_find(nodes, offsets, points[i] * total), "find", size);
      require(found_masses[i] == nodes[found[i]] && found_masses[i] > 0, "find on mass zero", size);
    }
    dasgrad_find(nodes.data(), size, points.data(), total, num, found.data(), nullptr);
    for (const double* pi : {static_cast<const double*>(nullptr), static_cast<const double*>(target.data())}) {
      for (const double floor : {0.0, 0.1, 0.99}) {
        for (const int stratified : {0, 1}) {
          std::vector<double> weights = points;
          dasgrad_draw(nodes.data(), pi, size, floor, stratified, weights.data(), num, found.data(), weights.data());
          for (int64_t i = 0; i < num; ++i) require(found[i] >= 0 && found[i] < size, "draw", size);
        }
        if (total < 1e-290) continue;  // where shares underflow
        int64_t num_credits = 0;
        for (int64_t parents = size; parents > 1;) num_credits += parents = (parents + 1) / 2;
        std::vector<int64_t> credits(num_credits);
        for (int64_t& credit : credits) credit = static_cast<int64_t>(random() >> 20);
        const std::vector<int64_t> before = credits;
        std::vector<double> weights(num);
        dasgrad_balance(nodes.data(), pi, size, floor, credits.data(), num, found.data(), weights.data());
        for (int64_t i = 0; i < num; ++i) {
          require(found[i] >= 0 && found[i] < size && (floor > 0 || nodes[found[i]] > 0), "balance", size);
          require(pi == nullptr || pi[found[i]] > 0, "balance outside the target", size);
        }
        for (const int64_t credit : credits) require(credit >= 0 && credit < int64_t{1} << 44, "credits", size);
        dasgrad_take_back(nodes.data(), pi, size, floor, credits.data(), found.data(), num);
        require(credits == before, "take_back", size);
      }
    }
  }

  for (const int64_t num : {int64_t{1}, int64_t{3}, size / 3 + 1, size, 2 * size}) {
    std::vector<int64_t> indices(num);
    std::vector<double> masses(num);
    for (int64_t i = 0; i < num; ++i) {
      indices[i] = static_cast<int64_t>(random() % static_cast<uint64_t>(size));
      masses[i] = uniform(random) < 0.2 ? 0 : uniform(random);
    }
    std::vector<double> expected = nodes;
    for (int64_t i = 0; i < num; ++i) expected[indices[i]] = masses[i];
    dasgrad_sum_levels(expected.data(), size, nullptr);
    dasgrad_update(nodes.data(), size, indices.data(), masses.data(), num);
    require(nodes == expected, "update", size);
    for (const int64_t outside : {int64_t{-1}, size, INT64_MIN, INT64_MAX}) {
      std::vector<int64_t> bad = indices;
      bad[num / 2] = outside;
      const double refused = dasgrad_update(nodes.data(), size, bad.data(), masses.data(), num);
      require(refused == -1 && nodes == expected, "refusing an index", size);
    }
    for (const double outside : {-1.0, -5e-324, static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
      std::vector<double> bad = masses;
      bad[num / 2] = outside;
      const double refused = dasgrad_update(nodes.data(), size, indices.data(), bad.data(), num);
      require(refused == -1 && nodes == expected, "refusing a mass", size);
    }
    if (size > 1) {
      for (int64_t i = 0; i < num; ++i) masses[i] = DBL_MAX;
      indices[0] = 0;
      if (num > 1) indices[num - 1] = size - 1;
      const double overflowed = dasgrad_update(nodes.data(), size, indices.data(), masses.data(), num);
      require(num == 1 || std::isinf(overflowed), "overflow", size);
      if (num > 1) require(nodes == expected, "going back after overflow", size);
      dasgrad_update(nodes.data(), size, indices.data(), expected.data(), 0);
      nodes = expected;
    }
  }
  std::vector<double> zeros(length), weights(3, 0.5);
  std::vector<int64_t> drawn(3);
  dasgrad_draw(zeros.data(), nullptr, size, 0.1, 1, weights.data(), 3, drawn.data(), weights.data());
  require(weights[0] == 1 && drawn[2] < size, "draw from zeros", size);
}

}  // namespace

int main() {
  std::mt19937_64 random(0);
  int64_t num_sizes = 0;
  for (int64_t size = 1; size <= 130; ++size, ++num_sizes) check(size, random);
  for (const int64_t size : {1023, 1024, 1025, 4097, 65535, 65536, 65537, 65539, 131073, 140001}) {
    check(size, random);
    ++num_sizes;
  }
  const int64_t integers[] = {0, 5, INT64_MIN, INT64_MAX};
  require(dasgrad_integers_within(integers, 2, 0, 5) && !dasgrad_integers_within(integers, 3, 0, 5), "integers", 0);
  const double reals[] = {0.0, -0.0, DBL_MAX, NAN, INFINITY, -1.0};
  require(dasgrad_reals_within(reals, 3, 0, DBL_MAX) && dasgrad_reals_within(reals, 0, 0, 1), "reals", 0);
  for (int i = 3; i < 6; ++i) require(!dasgrad_reals_within(reals + i, 1, 0, DBL_MAX), "reals outside", i);
  std::printf("ok %lld\n", static_cast<long long>(num_sizes));
}
