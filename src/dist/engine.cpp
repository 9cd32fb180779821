// SPDX-License-Identifier: Apache-2.0
// c10d: TCPStore, and Gloo or NCCL by their own classes. Where pip's torch has no headers of Gloo,
// and where Debian's has no NCCL, that engine is refused by name.
#include "dist/engine.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/version.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#ifdef FOCI_HAS_GLOO
#ifndef USE_C10D_GLOO
#define USE_C10D_GLOO
#endif
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#endif
#ifdef FOCI_HAS_NCCL
#ifndef USE_C10D_NCCL
#define USE_C10D_NCCL
#endif
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

#include <fmt/core.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

namespace foci::dist {
namespace {

using std::chrono::milliseconds;

#if TORCH_VERSION_MAJOR >= 2
using Base = c10d::Backend;
#else
using Base = c10d::ProcessGroup;
#endif

[[maybe_unused]] constexpr milliseconds longest = std::chrono::minutes(30);

std::vector<std::uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

/// Keys of an attempt of torchrun's stay in its store when the next begins.
std::string prefix_of(const Standing& s) { return fmt::format("foci/attempt_{}", s.restart); }

/// Both ends of a way to the store, as numbers.
struct Way {
  std::string own, store;
};

std::string text_of(const sockaddr* place, socklen_t size) {
  char text[NI_MAXHOST] = "";
  return ::getnameinfo(place, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0 ? text : "";
}

[[maybe_unused]] Way way_to_store(const Standing& s) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(s.host.c_str(), std::to_string(s.port).c_str(), &hints, &found) != 0)
    throw Error(fmt::format("{}: this host is not known", s.host));
  Way way;
  for (const addrinfo* at = found; at != nullptr && way.own.empty(); at = at->ai_next) {
    const int socket = ::socket(at->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (socket < 0) continue;
    sockaddr_storage own{};
    socklen_t size = sizeof own;
    auto* const place = reinterpret_cast<sockaddr*>(&own);
    if (::connect(socket, at->ai_addr, at->ai_addrlen) == 0 &&
        ::getsockname(socket, place, &size) == 0)
      way = {text_of(place, size), text_of(at->ai_addr, at->ai_addrlen)};
    ::close(socket);
  }
  ::freeaddrinfo(found);
  if (way.own.empty()) throw Error(fmt::format("{}: there is no way to this host", s.host));
  return way;
}

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

/// This machine's address for the other ranks. Its own name may lead to its loopback, as Debian's
/// does; then it is the one that others find it by, unless they are all here.
[[maybe_unused]] std::string own_address(c10d::Store& store, const Standing& s) {
  const Way way = way_to_store(s);
  store.set(fmt::format("way/{}", s.rank), bytes_of(way.store));
  if (!is_loopback(way.own) || is_loopback(s.host) || s.host == "localhost") return way.own;
  for (int rank = 0; rank < s.size; ++rank) {
    const auto seen = store.get(fmt::format("way/{}", rank));
    const std::string address(seen.begin(), seen.end());
    if (!address.empty() && !is_loopback(address)) return address;
  }
  return way.own;
}

}  // namespace

struct Meeting::Inside {
  c10::intrusive_ptr<c10d::Store> whole, store;
};

Meeting::Meeting(const Standing& standing, Role role, milliseconds patience)
    : inside_(std::make_unique<Inside>()) {
  c10d::TCPStoreOptions options;
  options.port = std::uint16_t(standing.port);
  options.isServer = role == Role::host_if_rank_0 && standing.rank == 0 && !standing.agent;
  options.waitWorkers = false;
  options.timeout = patience;
  try {
    inside_->whole = c10::make_intrusive<c10d::TCPStore>(standing.host, options);
  } catch (const std::exception&) {
    const std::string place = fmt::format("{}:{}", standing.host, standing.port);
    throw Error(options.isServer ? place +
                                       " cannot be opened for the other ranks; --port or "
                                       "MASTER_PORT names another"
                                 : "nobody is at " + place + ", where the ranks are to meet");
  }
  inside_->store = c10::make_intrusive<c10d::PrefixStore>(prefix_of(standing), inside_->whole);
}

Meeting::~Meeting() = default;

void Meeting::set(const std::string& name, const std::string& text) {
  inside_->store->set(name, bytes_of(text));
}

std::string Meeting::get(const std::string& name, milliseconds most) {
  inside_->store->wait({name}, most);
  const auto bytes = inside_->store->get(name);
  return {bytes.begin(), bytes.end()};
}

bool Meeting::has(const std::string& name) { return inside_->store->check({name}); }

std::int64_t Meeting::add(const std::string& name, std::int64_t count) {
  return inside_->store->add(name, count);
}

struct Engine::Inside {
  at::Device device{at::kCPU};
  c10::intrusive_ptr<Base> group;
};

namespace {

#ifdef FOCI_HAS_GLOO
c10::intrusive_ptr<Base> open_gloo(const c10::intrusive_ptr<c10d::Store>& store,
                                   const Standing& standing) {
  const auto options = c10d::ProcessGroupGloo::Options::create(longest);
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  options->devices.push_back(
      interface != nullptr
          ? c10d::ProcessGroupGloo::createDeviceForInterface(interface)
          : c10d::ProcessGroupGloo::createDeviceForHostname(own_address(*store, standing)));
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, standing.rank, standing.size, options);
}
#else
c10::intrusive_ptr<Base> open_gloo(const c10::intrusive_ptr<c10d::Store>&, const Standing&) {
  throw Unsupported(
      "several processes on --device cpu need Gloo, whose headers were not there when this was "
      "built (Debian: libgloo-dev); the nearest is one process, or --device cuda with NCCL");
}
#endif

#ifdef FOCI_HAS_NCCL
c10::intrusive_ptr<Base> open_nccl(const c10::intrusive_ptr<c10d::Store>& store,
                                   const Standing& standing, const at::Device& device) {
  c10::impl::VirtualGuardImpl(at::kCUDA).setDevice(device);
  const auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = longest;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, standing.rank, standing.size, options);
}
#else
c10::intrusive_ptr<Base> open_nccl(const c10::intrusive_ptr<c10d::Store>&, const Standing&,
                                   const at::Device&) {
  throw Unsupported(
      "several processes on --device cuda need NCCL, which torch or its headers lacked when this "
      "was built; the nearest is one process, or --device cpu with Gloo");
}
#endif

Work held(const c10::intrusive_ptr<c10d::Work>& work) {
  return std::make_shared<c10::intrusive_ptr<c10d::Work>>(work);
}

}  // namespace

Engine::Engine(Meeting& meeting, const Standing& standing, const std::string& device)
    : inside_(std::make_unique<Inside>()) {
  const auto store = c10::make_intrusive<c10d::PrefixStore>("engine", meeting.inside_->store);
  if (device == "cuda") {
    inside_->device = at::Device(at::kCUDA, c10::DeviceIndex(standing.local_rank));
    inside_->group = open_nccl(store, standing, inside_->device);
  } else {
    inside_->group = open_gloo(store, standing);
  }
}

Engine::~Engine() = default;

at::Device Engine::device() const { return inside_->device; }

Work Engine::sum(const at::Tensor& x) {
  std::vector<at::Tensor> tensors{x};
  return held(inside_->group->allreduce(tensors));
}

Work Engine::take(const at::Tensor& x) {
  std::vector<at::Tensor> tensors{x};
  return held(inside_->group->broadcast(tensors));
}

Work Engine::send(const at::Tensor& x, int to) {
  std::vector<at::Tensor> tensors{x};
  return held(inside_->group->send(tensors, to, 0));
}

Work Engine::receive(const at::Tensor& x, int from) {
  std::vector<at::Tensor> tensors{x};
  return held(inside_->group->recv(tensors, from, 0));
}

void Engine::then(const Work& work, std::function<void()> what) {
  const auto future = (*static_cast<c10::intrusive_ptr<c10d::Work>*>(work.get()))->getFuture();
  future->addCallback([what = std::move(what)](c10::ivalue::Future&) { what(); });
}

void Engine::wait(const Work& work) {
  if (work) (*static_cast<c10::intrusive_ptr<c10d::Work>*>(work.get()))->wait();
}

}  // namespace foci::dist
