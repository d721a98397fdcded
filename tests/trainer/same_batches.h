// Batches compared bit for bit: one with one, and two sources of the same ones to their ends.
#pragma once

#include "tests/testing/catch.h"
#include "trainer/data/batch_loader.h"

namespace ddprun::trainer {

inline void check_same(const Batch& found, const Batch& expected) {
  CHECK(torch::equal(found.images, expected.images));
  CHECK(found.images.strides() == expected.images.strides());
  CHECK(torch::equal(found.labels, expected.labels));
  CHECK(found.indices == expected.indices);
}

inline void check_same_batches(BatchSource& found, BatchSource& expected) {
  CHECK(found.batches() == expected.batches());
  while (const auto right = expected.next()) {
    const auto batch = found.next();
    REQUIRE(batch);
    check_same(*batch, *right);
    CHECK(found.taken() == expected.taken());
  }
  CHECK_FALSE(found.next());
  CHECK(found.skipped().size() == expected.skipped().size());
}

}  // namespace ddprun::trainer
