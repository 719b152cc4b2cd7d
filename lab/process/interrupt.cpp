#include "process/interrupt.hpp"

#include <csignal>
#include <cstdlib>

#include "heed/heed.hpp"

namespace heed {
namespace {

volatile std::sig_atomic_t g_signals = 0;
thread_local const std::atomic<bool>* t_stop = nullptr;

void on_signal(int number) {
  // A terminal that goes away says so twice, by its shell and by itself.
  if (number == SIGHUP && g_signals > 0) return;
  g_signals = g_signals + 1;
  if (g_signals > 1) {
    std::signal(number, SIG_DFL);
    std::raise(number);
  }
}

}  // namespace

void install_interrupt_handler() {
  struct sigaction action {};
  action.sa_handler = on_signal;  // no SA_RESTART: poll() in progress must return
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  struct sigaction hangup {};
  sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);  // nohup goes on without its terminal
}

bool interrupted() {
  return g_signals != 0 || (t_stop != nullptr && t_stop->load());
}

void interrupt() {
  g_signals = g_signals + 1;
}

void check_interrupt() {
  if (interrupted()) throw Error(ErrorCode::interrupted, "interrupted by the user");
}

Stoppable::Stoppable(const std::atomic<bool>& stop) {
  t_stop = &stop;
}

Stoppable::~Stoppable() {
  t_stop = nullptr;
}

}  // namespace heed
