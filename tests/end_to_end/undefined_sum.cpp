// Adds 1 to the largest int: for undefined_report_test.
#include <climits>

int main(int argc, char**) { return INT_MAX + argc == 0; }
