// The texts that are made from the options of train, and that the files in the tree are those.
#include "trainer/documents/train_documents.h"

#include "tests/testing/catch.h"
#include "tests/testing/text.h"

using namespace ddprun::trainer;
using ddprun::testing::contains;
using ddprun::testing::content_of;

namespace {

// Compares a file of the tree with what it should hold; scripts/update_docs makes it so.
void check_file(const std::string& name, const std::string& wanted) {
  INFO(name << " is not what the options say: run scripts/update_docs");
  CHECK(content_of(std::string(DDPRUN_SOURCE_DIR) + "/" + name) == wanted);
}

}  // namespace

TEST_CASE("17.1: train's man page and completions are those of its parser",
          "[trainer][documents]") {
  check_file("docs/train.1", train_man_page());
  check_file("completions/train.bash", train_bash_completion());
  check_file("completions/_train", train_zsh_completion());
  check_file("completions/train.fish", train_fish_completion());
}

TEST_CASE("17.1: train's values are completed as what they are", "[trainer][documents]") {
  const std::string bash = train_bash_completion();
  CHECK(contains(bash, "--checkpoint-dir) offer=\"-d\""));
  CHECK(contains(bash, "--precision) offer=\"-W 'bf16 fp16 fp32'\""));
  CHECK(contains(bash, "--resume) offer=\"-W 'auto none' -f\""));
  CHECK(contains(bash, "resnet152"));
  CHECK(contains(bash, "--no-overlap"));
  CHECK(contains(train_zsh_completion(), "'--metrics=["));
  CHECK(contains(train_man_page(), "\\fB\\-\\-batch\\-size\\fR"));
  CHECK(contains(train_man_page(), ".nh"));
}
