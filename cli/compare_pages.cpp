// SPDX-License-Identifier: Apache-2.0
// The pages of compare, report and reproduce. The defaults of a plan are the ones that stand here.
#include "cli/pages.hpp"

namespace foci::cli {
namespace {

constexpr std::string_view plan_group = "The plan";
constexpr std::string_view judged_group = "What is measured";

Flags plan_flags() {
  return {
      {"plan", "FILE", "", plan_group,
       "a JSON file of these flags, or the name of one in presets/; flags given here win"},
      {"task", "image|segment|text|series|listops", "image", plan_group, "what is learned"},
      {"data", "FILE", "image: fashion-mnist; listops: made", plan_group,
       "a folder, or the name of a set in data/"},
      {"mechanisms", "KEY", "dot,flat,random,layer-change,key-covariance", plan_group,
       "metrics with commas, the first is the baseline; flags of foci train after colons: "
       "layer-change:form=distance"},
      {"seeds", "COUNT", "3", plan_group, "runs of each mechanism, from --seed on"},
      {"budget", "KEY", "7m", plan_group,
       "time for all of it, such as 90s, 8m, 1h or 1h30m; it decides the steps of a run"},
      {"steps", "COUNT", "0", plan_group, "steps of every run in place of --budget"},
      {"model", "KEY", "the task's smallest", plan_group,
       "a model, and flags of foci train: 'vit_micro dim=32 learning-rate=0.001'"},
      {"checkpoint", "KEY", "", plan_group,
       "compare these runs of foci train, with commas, and train nothing: without --mechanisms, "
       "--seeds, --budget, --steps and --model"},
      {"out", "FILE", "compare", output_group,
       "the folder of the results; what is in it already is not done again"},
      {"jobs", "COUNT", "one a core, on a GPU one", running_group, "runs at once, of each process"},
      {"patience", "COUNT", "40", running_group,
       "of several processes: seconds without a sign of life after which one is given up"},
  };
}

Flags measure_flags() {
  return {
      {"judge-samples", "COUNT", "0", judged_group,
       "image: those evaluated; 0: all of the test split, without one of valid"},
      {"attack", "KEY", "apgd-ce,square", judged_group,
       "image: attacks with commas, or none; foci attack has them"},
      {"norm", "linf|l2|l1", "linf", judged_group, "how an attack's change is measured"},
      {"eps", "KEY", "1,2", judged_group, "its largest change, as for foci attack"},
      {"iterations", "COUNT", "20", judged_group, "steps of an attack with a gradient"},
      {"queries", "COUNT", "200", judged_group, "of square"},
      {"attack-samples", "COUNT", "64", judged_group, "images that are attacked"},
      {"check", "COUNT", "16", judged_group,
       "images that small experiments look for reasons to doubt an attack with; 0: none"},
      {"corruptions", "KEY",
       "image: gaussian_noise,motion_blur,fog,contrast,pixelate; text: swap,bytes; series: "
       "noise,spikes,missing",
       judged_group, "corruptions with commas, or none"},
      {"severity", "1|2|3|4|5|LIST", "3", judged_group, "how much, several with commas"},
      {"frost", "FILE", "", judged_group, "folder of pictures of frost, which frost needs"},
      {"corrupt-samples", "COUNT", "1000", judged_group, "image: corrupted ones; 0: all"},
      {"measure-samples", "COUNT", "64", judged_group,
       "samples whose attention and tokens foci measure looks at; 0: none"},
      {"maps", "COUNT", "3", judged_group,
       "image, segment: those whose weights are kept, of the first seed; 0: none"},
  };
}

}  // namespace

VerbPage compare_page() {
  return {
      "compare",
      "Trains, attacks, corrupts and times the same model under each mechanism, and says what "
      "differs.",
      {{"Fashion-MNIST, five mechanisms, three seeds, in under eight minutes", "foci compare"},
       {"an hour, ten seeds, your own images",
        "foci compare --data photos --seeds 10 --budget 1h --out photos-compared"},
       {"two mechanisms on text",
        "foci compare --task text --data wikitext-2 --mechanisms dot,layer-change --budget 30m"},
       {"runs that are trained already", "foci compare --checkpoint runs/dot,runs/elliptical"}},
      together({plan_flags(), measure_flags(), common_flags()}),
      {},
      {},
      {"In the folder: plan.json, the plan as it was resolved; results.json; results.csv; "
       "records.jsonl; figures/; report.html; runs/MECHANISM-SEED-HASH, each a run of foci train "
       "that foci eval, attack and generate take. A run is named after all that decides it, so a "
       "changed plan redoes what changed and a second call nothing; a kill at any moment loses no "
       "run that was done. A run that fails is named and the others go on. Ctrl-C and SIGTERM save "
       "and end with status 0; results.json then says stopped.",
       "Images of more than 32 pixels a side, or of mixed sizes, become at most 64 x 64 and 64 "
       "patches unless --model says image= or patch=; a line says what they become. Without a test "
       "split the valid split judges. A budget that cannot hold 20 steps is refused, after the "
       "first timing with a command that fits.",
       "Every number is measured by foci train, eval and attack; results say with which flags. "
       "Differences are paired by seeds; with fewer than 3 seeds there is no verdict.",
       "In several processes (foci launch, torchrun, srun, mpirun) each takes whole runs; --jobs "
       "and --threads are those of one process. Hosts must share the folder of the results, and "
       "have the same data under the same path. A process that is lost leaves its runs to the "
       "others, or to the next call: docs/compare.md."}};
}

VerbPage report_page() {
  return {"report",
          "Makes results.json, results.csv and report.html of runs that are there.",
          {{"two runs of foci train, with what eval and attack added",
            "foci report runs/dot runs/elliptical --out report"},
           {"all runs of a comparison", "foci report compare/runs/*"}},
          together({{{"out", "FILE", "report", output_group, "the folder of the results"}},
                    common_flags()}),
          "RUN...",
          "folders of runs over the same data; one that is half-written is named and left out",
          {"Runs whose flags differ in the seed alone are of one mechanism; other flags that "
           "differ stand in its name, or below it where they are many. What the runs have over "
           "different samples or by different commands is left out, and a line says so."}};
}

VerbPage reproduce_page() {
  constexpr std::string_view which_group = "Which Record";
  return {
      "reproduce",
      "Runs the command of a Record again, in a folder of its own, and compares the values.",
      {{"the accuracy of a run, trained anew", "foci reproduce runs/a/records.jsonl --name top1"},
       {"one number of a comparison", "foci reproduce compare/records.jsonl --line 12"}},
      together({{{"name", "KEY", "the only one", which_group, "of the Record; the last such"},
                 {"line", "COUNT", "", which_group, "its line in the file, from 1"},
                 {"tolerance", "NUMBER", "its spread, or 1e-6 of the value", which_group,
                  "the largest difference that passes"}},
                common_flags()}),
      "RECORDS",
      "a file of Records: records.jsonl of a run or of a comparison, or results.json beside one",
      {"Exit status 1 says that the values differ. What the command needs (data, weights of an "
       "eval or attack) must still be where it was; nothing of it is changed. A comparison's speed "
       "and memory are "
       "timed by a comparison alone: a line then names its command."}};
}

}  // namespace foci::cli
