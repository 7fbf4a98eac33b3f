#include "muster/testing/test_main.h"

int main(int argc, char** argv) {
  return muster::detail::testing::run_tests(argc, argv);
}
