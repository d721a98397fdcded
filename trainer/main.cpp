// Trains a ResNet on one or many workers; see trainer/train_loop.cpp.
#include "trainer/run_train.h"

int main(int argc, char** argv) { return ddprun::trainer::run_train(argc, argv); }
