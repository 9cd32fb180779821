// SPDX-License-Identifier: Apache-2.0
// Starts the peers and holds their results against ours. A peer that is not here says why.
#include "cli/peers.hpp"

#include "cli/machine.hpp"
#include "cli/misuse.hpp"
#include "cli/naive.hpp"
#include "cli/process.hpp"
#include "cli/suggest.hpp"
#include "cli/turns.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>

namespace foci::cli {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

constexpr std::chrono::seconds start_patience(180), run_patience(600);

/// A folder that goes away with it.
class Scratch {
 public:
  Scratch() {
    std::string name = (fs::temp_directory_path() / "foci-bench-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw NoAnswer("no folder for its tensors: " + name);
    path_ = name;
  }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  std::string file(const std::string& name) const { return (path_ / name).string(); }
  std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

/// A file that is built or installed with the command; throws NoAnswer when it is not there.
std::string companion(const std::string& name) {
  const fs::path here = program_folder();
  for (const fs::path& folder : {here / "bench", here / "../libexec/foci"}) {
    std::error_code fault;
    if (fs::is_regular_file(folder / name, fault)) return (folder / name).lexically_normal();
  }
  throw NoAnswer(fmt::format("{} is not in {}", name, (here / "bench").string()));
}

/// One object in one line; throws NoAnswer when it is something else, or tells of an error.
Json answer_of(Process& process, std::chrono::seconds patience) {
  const std::string line = process.hear(patience);
  Json answer = Json::parse(line, nullptr, false);
  if (!answer.is_object()) throw NoAnswer("it said '" + shown(line) + "'");
  const auto error = answer.find("error");
  if (error != answer.end() && error->is_string()) throw NoAnswer(shown(error->get<std::string>()));
  return answer;
}

std::string text_in(const Json& answer, const char* field) {
  const auto found = answer.find(field);
  return found != answer.end() && found->is_string() ? shown(found->get<std::string>()) : "";
}

double number_in(const Json& answer, const char* field, double standard) {
  const auto found = answer.find(field);
  return found != answer.end() && found->is_number() ? found->get<double>() : standard;
}

/// The peers of one program: its first line says what each is, or why it is not.
std::vector<Peer> peers_of(const Names& command, const Names& names, double flops) {
  const auto process = std::make_shared<Process>(command);
  const Json hello = answer_of(*process, start_patience);
  std::vector<Peer> peers;
  for (const std::string& name : names) {
    const Json about = hello.contains(name) ? hello.at(name) : Json::object();
    Peer peer{.name = name,
              .what = text_in(about, "what"),
              .flops = number_in(about, "flops", flops),
              .run = {},
              .why_not = text_in(about, "why_not"),
              .difference = {}};
    if (peer.what.empty() && peer.why_not.empty()) peer.why_not = "its program does not know it";
    peer.run = [process, name] {
      process->say(name);
      const double seconds = number_in(answer_of(*process, run_patience), "seconds", 0);
      if (!(seconds > 0)) throw NoAnswer("it gave no time");
      return seconds;
    };
    peers.push_back(std::move(peer));
  }
  return peers;
}

/// Absent, all for the same reason.
std::vector<Peer> absent(const Names& names, const std::string& why_not) {
  std::vector<Peer> peers;
  for (const std::string& name : names) {
    peers.push_back(
        {.name = name, .what = {}, .flops = 0, .run = {}, .why_not = why_not, .difference = {}});
  }
  return peers;
}

std::vector<Peer> sgemm(Subject& ours) {
  try {
    const std::string threads = std::to_string(ours.threads().threads());
    return peers_of({companion("sgemm"), threads}, {"sgemm"}, 0);
  } catch (const NoAnswer& fault) {
    return absent({"sgemm"}, fault.what());
  }
}

template <class T>
struct NaiveRun {
  Problem problem;
  NaiveAttention<T> attention;
  NaiveRun(const Subject& ours, Executor& threads, DType dtype)
      : problem(converted(ours.problem(), dtype)),
        attention(problem, ours.what().mechanism.how, threads) {}

  void run(Pass pass) {
    if (pass != Pass::backward) attention.forward();
    if (pass != Pass::forward) attention.backward();
  }
};

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double most = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double gap = std::abs(a[i] - b[i]);
    most = gap <= most ? most : gap;
  }
  return most;
}

template <class T>
Peer naive_of(Subject& ours, DType dtype) {
  const auto naive = std::make_shared<NaiveRun<T>>(ours, ours.threads(), dtype);
  const Pass pass = ours.what().pass;
  Peer peer{.name = "naive",
            .what = fmt::format("textbook softmax dot attention in {}", name_of(dtype)),
            .flops = ours.flops(),
            .run = [naive, pass] { return timed([&] { naive->run(pass); }); },
            .why_not = {},
            .difference = {}};
  naive->run(Pass::forward);
  peer.run();
  if (!ours.is_plain()) return peer;
  const auto& theirs = naive->attention;
  const auto far = [&](const char* name, const std::vector<T>& values) {
    return largest_difference(ours.call().tensors().at(name).values(),
                              {values.begin(), values.end()});
  };
  peer.difference = far("o", theirs.o());
  if (pass == Pass::forward) return peer;
  peer.difference = std::max(
      {*peer.difference, far("dq", theirs.dq()), far("dk", theirs.dk()), far("dv", theirs.dv())});
  return peer;
}

std::vector<Peer> naive(Subject& ours) {
  const double memory = double(sysconf(_SC_PHYS_PAGES)) * double(sysconf(_SC_PAGESIZE));
  const double bytes =
      NaiveAttention<double>::matrix_bytes(ours.what().sizes, ours.threads().threads());
  if (4 * bytes > memory) return absent({"naive"}, "its N x M matrices do not fit in memory");
  if (ours.dtype() == DType::f64) return {naive_of<double>(ours, DType::f64)};
  return {naive_of<float>(ours, DType::f32)};
}

std::string pass_word(Pass pass) {
  return pass == Pass::forward ? "forward" : pass == Pass::backward ? "backward" : "both";
}

Names torch_flags(Subject& ours, const Names& names, const Scratch& scratch) {
  const Sizes& s = ours.what().sizes;
  Names flags = {"--serve",
                 "--shape=" + fmt::format("{},{},{},{}", s.B, s.H, s.N, s.D),
                 "--kv-heads=" + std::to_string(s.G),
                 "--keys=" + std::to_string(s.M),
                 "--values=" + std::to_string(s.E),
                 "--dtype=" + std::string(name_of(ours.dtype())),
                 "--threads=" + std::to_string(ours.threads().threads()),
                 "--pass=" + pass_word(ours.what().pass),
                 "--peers=" + listed(names, ","),
                 "--tensors=" + scratch.file("tensors"),
                 "--answers=" + scratch.path()};
  if (ours.what().mechanism.how.causal) flags.emplace_back("--causal");
  return flags;
}

/// Largest |theirs - ours| over all tensors that both have.
double file_difference(const std::string& path, const Subject& ours) {
  const Safetensors file(path);
  double most = 0;
  for (const std::string& name : file.names()) {
    const auto found = ours.call().tensors().find(name);
    if (found == ours.call().tensors().end()) continue;
    const View theirs = file.find(name);
    most = std::max(most, distance(found->second, Tensor::copy(theirs, theirs.dtype)));
  }
  return most;
}

/// With the first python that has torch: $FOCI_PYTHON, or the usual ones.
std::vector<Peer> torch(Subject& ours, const Names& names) try {
  const Scratch scratch;
  std::map<std::string, View> tensors;
  for (const char* name : {"q", "k", "v", "do"}) {
    if (const View view = ours.problem().view(name)) tensors[name] = view;
  }
  write_safetensors(scratch.file("tensors"), tensors, {});
  const std::string script = companion("peers.py");
  const char* chosen = std::getenv("FOCI_PYTHON");
  const Names pythons =
      chosen != nullptr && *chosen != 0 ? Names{chosen} : Names{"python3", "/usr/bin/python3"};
  std::string why_not;
  for (const std::string& python : pythons) {
    try {
      Names command = {python, script};
      for (const std::string& flag : torch_flags(ours, names, scratch)) command.push_back(flag);
      std::vector<Peer> peers = peers_of(command, names, ours.flops());
      for (Peer& peer : peers) {
        if (!peer.why_not.empty() || !ours.is_plain()) continue;
        peer.difference = file_difference(scratch.file(peer.name), ours);
      }
      return peers;
    } catch (const NoAnswer& fault) {
      why_not = fault.what();
    }
  }
  return absent(names, why_not);
} catch (const NoAnswer& fault) {
  return absent(names, fault.what());
}

/// A peer asked for by name must be there; `torch` is either of its two.
void check_present(const PeerChoice& choice, const std::vector<Peer>& peers) {
  for (const std::string& word : choice.words) {
    std::string why_not;
    bool here = false;
    for (const Peer& peer : peers) {
      if (peer.name != word && !(word == "torch" && peer.name.starts_with("torch-"))) continue;
      here = here || peer.why_not.empty();
      why_not = peer.why_not;
    }
    if (here) continue;
    throw Misuse(fmt::format("--peers {}: {}", word, why_not), "--peers all takes those it finds");
  }
}

}  // namespace

std::vector<Peer> start_peers(const PeerChoice& choice, Subject& ours) {
  std::vector<Peer> peers;
  const auto add = [&](std::vector<Peer> more) {
    for (Peer& peer : more) peers.push_back(std::move(peer));
  };
  Names of_torch;
  for (const std::string& name : choice.names) {
    if (name == "sgemm") add(sgemm(ours));
    if (name == "naive") add(naive(ours));
    if (name.starts_with("torch-")) of_torch.push_back(name);
  }
  if (!of_torch.empty()) add(torch(ours, of_torch));
  check_present(choice, peers);
  return peers;
}

}  // namespace foci::cli
