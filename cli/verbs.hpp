// SPDX-License-Identifier: Apache-2.0
// What a command line asks for, as plain structs: parse() makes one and touches nothing else, run()
// does it.
#pragma once

#include "cli/flags.hpp"
#include "cli/problem.hpp"

#include <foci/call.hpp>
#include <foci/data.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace foci::cli {

struct Common {
  bool json = false;
  bool quiet = false;
  std::uint64_t seed = 0;
  int threads = 0;  ///< 0 = one per core
  bool cuda = false;
};

/// The mechanism flags: as words, because a file's metadata may complete them, and as options.
struct Mechanism {
  Words words;
  Options how;                 ///< of the words alone; not set when from_metadata
  std::optional<DType> dtype;  ///< --dtype
  bool from_metadata = false;
};

struct Info {
  Common common;
  bool markdown = false;
};

struct Attend {
  Common common;
  std::string in, out;
  Mechanism mechanism;
};

struct Check {
  Common common;
  std::optional<std::string> in;
  Sizes sizes;  ///< when there is no file
  Mechanism mechanism;
};

enum class Pass { forward, backward, both };

/// One mechanism of ours at one shape, as it is timed.
struct Timed {
  Sizes sizes;
  Mechanism mechanism;
  Pass pass = Pass::forward;
  bool stats = false;
  bool key_bias = false;
  int threads = 0;  ///< 0 = one per core
};

struct Versus {
  std::string text;  ///< as it was given
  Timed timed;
};

/// Who else is timed.
struct PeerChoice {
  std::vector<std::string> names;  ///< sgemm, naive, torch-sdpa, torch-eager
  std::vector<std::string> words;  ///< those that must be there: names, or torch for either
};

struct Bench {
  Common common;
  Timed ours;
  std::optional<Versus> versus;
  PeerChoice peers;
  int turns = 9;
};

/// Every mechanism on the same made tensors.
struct BenchAll {
  Common common;
  Sizes sizes;
  DType dtype = DType::f32;
  Backend backend = Backend::automatic;
  bool causal = false;
};

/// How well attention can concentrate.
struct Theory {
  Common common;
  Words words;
};

struct Data {
  enum class Action { list, get, show, make };
  Common common;
  Action action = Action::list;
  std::string name;  ///< of a set, or a path
  std::string out;   ///< folder to fill; empty = data/NAME
  std::optional<data::Split> split;
  std::optional<std::int64_t> count;
  std::string sheet;  ///< PNG file for samples
  bool check = false;
};

struct Models {
  Common common;
  std::string name;  ///< empty = all of them
};

struct Generate {
  Common common;
  std::string model;      ///< llama2.c's .bin, or a folder of GPT-2
  std::string tokenizer;  ///< its file or folder; empty = beside the model
  std::string prompt;
  std::int64_t tokens = 256;
  double temperature = 0, top_p = 1;
  bool cuda = false;
};

struct Train {
  Common common;
  std::string task;  ///< images, text, sequences, segments
  Words words;
};

struct Eval {
  Common common;
  std::string run;
  Words words;
};

struct Attack {
  Common common;
  std::string run;
  Words words;
};

struct Measure {
  Common common;
  std::string subject;  ///< a run, a language model, or a file of tensors
  Words words;
};

/// The same model under each mechanism, trained and judged.
struct Compare {
  Common common;
  Words words;
};

/// Verbs that need torch: `foci` hands its arguments to `foci-torch`, which runs them.
struct WithTorch {
  std::variant<Models, Generate, Train, Eval, Attack, Measure, Compare> verb;
  std::vector<std::string> arguments;
};

/// Several processes of one command.
struct Launch {
  std::int64_t processes = 1;
  std::vector<std::string> hosts;    ///< empty: this machine
  std::vector<std::string> through;  ///< ssh
  std::string master;                ///< where they meet; empty: the first host
  int port = 0;
  bool quiet = false;
  std::vector<std::string> command;
};

struct Convert {
  Common common;
  std::string in, out;
  std::string take;         ///< the dictionary of weights; empty: the usual ones
  std::string drop;         ///< tensors whose names begin so are left out
  bool keep_names = false;  ///< with the prefixes of wrappers
  bool hf_vit = false;      ///< names of Hugging Face's ViT become timm's
};

struct Corrupt {
  Common common;
  std::string data;  ///< a folder, or a known set
  Words words;
};

struct Serve {
  Common common;
  std::string folder;
  std::string host = "127.0.0.1";
  int port = 0;       ///< 0 = any that is free
  int patience = 10;  ///< seconds
  bool token = false;
};

/// Runs that are there, as one set of results.
struct Report {
  Common common;
  std::vector<std::string> runs;
  Words words;
};

/// A Record measured again.
struct Reproduce {
  Common common;
  std::string records;  ///< a file of them, or a results.json
  Words words;
};

struct Completion {
  std::string shell;
};
struct Manual {};
struct Help {
  std::string verb;  ///< empty = all of them
};
struct Version {};

using Verb =
    std::variant<Info, Attend, Check, Bench, BenchAll, Theory, Data, WithTorch, Convert, Corrupt,
                 Launch, Serve, Report, Reproduce, Completion, Manual, Help, Version>;

/// `arguments` without the program's name. Reads no file; throws Misuse and nothing else.
Verb parse(const std::vector<std::string>& arguments);
/// The same for launch, whose words after -- are another command.
Verb launch_of(const std::vector<std::string>& arguments);

/// Each returns the exit status: 0, or 1 when a check failed. Throws Misuse and the library's
/// errors.
int run(const Info&);
int run(const Attend&);
int run(const Check&);
int run(const Bench&);
int run(const BenchAll&);
int run(const Theory&);
int run(const Data&);
int run(const WithTorch&);  ///< one in each program
int run(const Convert&);
int run(const Corrupt&);
int run(const Launch&);
int run(const Serve&);
int run(const Report&);
int run(const Reproduce&);
int run(const Completion&);
int run(const Manual&);
int run(const Help&);
int run(const Version&);

/// Parses and runs; prints errors to standard error. Returns the exit status: 0 ok, 1 failed, 2
/// misuse.
int run_command(const std::vector<std::string>& arguments);

}  // namespace foci::cli
