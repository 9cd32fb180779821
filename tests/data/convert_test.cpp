// SPDX-License-Identifier: Apache-2.0
// Checkpoints of torch: files that torch 1.13 wrote (tests/data/make_pt.py) give its numbers,
// hostile and broken ones are refused in one line, and nothing of them runs.
#include <foci/convert.hpp>

#include "data/folder.hpp"
#include "data/torch_archive.hpp"
#include "data/torch_file.hpp"

#include <foci/safetensors.hpp>

#include <numeric>

namespace foci::data {
namespace {

using Values = std::vector<double>;

class Convert : public InFolder {
 protected:
  /// What is said of a torch file with this pickle.
  std::string says(const std::string& pickle) const {
    const std::string path = made("a.pt", archive(pickle));
    return fault([&] { read_checkpoint(path); });
  }
};

Values values_of(const View& view) { return Tensor::copy(view, DType::f64).values(); }

Values ramp(int count) {
  Values values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), 0);
  return values;
}

void expect_types(const Checkpoint& file) {
  const auto& t = file.tensors;
  ASSERT_EQ(t.size(), 14u);
  for (const char* name : {"f64", "f32", "f16", "bf16", "i64", "i32", "u8", "bool"}) {
    EXPECT_EQ(name_of(t.at(name).dtype), name);
  }
  EXPECT_EQ(values_of(t.at("f64")), (Values{0, 1.0 / 3, 2.0 / 3, 1}));
  EXPECT_EQ(values_of(t.at("f32")), ramp(6));
  EXPECT_EQ(values_of(t.at("f16")), (Values{0, 0.5, 1}));
  EXPECT_EQ(values_of(t.at("bf16")), (Values{0, 0.5, 1}));
  EXPECT_EQ(*t.at("i64").at<std::int64_t>({0}), std::int64_t{1} << 62);
  EXPECT_EQ(values_of(t.at("i32")), (Values{1 << 30, -5}));
  EXPECT_EQ(values_of(t.at("u8")), (Values{0, 255}));
  EXPECT_EQ(values_of(t.at("bool")), (Values{1, 0, 1}));
  EXPECT_EQ(to_string(t.at("transposed").sizes()), "(6, 4)");
  EXPECT_EQ(*t.at("transposed").at<float>({5, 1}), 11);
  EXPECT_EQ(values_of(t.at("slice")), (Values{8, 9, 10, 14, 15, 16}));
  EXPECT_EQ(values_of(t.at("repeated")), Values(6, 7));
  EXPECT_EQ(to_string(t.at("scalar").sizes()), "(1)");
  EXPECT_EQ(values_of(t.at("scalar")), Values{4});
  EXPECT_EQ(to_string(t.at("empty").sizes()), "(0, 3)");
  EXPECT_EQ(values_of(t.at("parameter")), ramp(2));
}

TEST_F(Convert, EveryTypeAndLayout) {
  const Checkpoint file = read_checkpoint(golden + "types.pt");
  EXPECT_EQ(file.format, "torch");
  EXPECT_EQ(file.taken, "");
  EXPECT_TRUE(file.left.empty());
  expect_types(file);
}

TEST_F(Convert, TheFormatBeforeZip) {
  const Checkpoint file = read_checkpoint(golden + "early.pt");
  EXPECT_EQ(file.format, "torch before 1.6");
  expect_types(file);
}

TEST_F(Convert, WhatIsWrittenComesBack) {
  Checkpoint file = read_checkpoint(golden + "types.pt");
  write_safetensors(at("out.safetensors"), file.tensors);
  const Checkpoint back = read_checkpoint(at("out.safetensors"));
  EXPECT_EQ(back.format, "safetensors");
  expect_types(back);
  for (const auto& [name, view] : back.tensors) EXPECT_TRUE(view.contiguous()) << name;
}

TEST_F(Convert, WeightsArePickedFromATraining) {
  Checkpoint file = read_checkpoint(golden + "training.pth");
  EXPECT_EQ(file.taken, "model");
  EXPECT_EQ(file.left, (std::vector<std::string>{"epoch", "best", "name", "optimizer"}));
  EXPECT_EQ(strip_wrappers(file), "module.");
  EXPECT_EQ(values_of(file.tensors.at("0.weight")), ramp(6));
  EXPECT_EQ(values_of(file.tensors.at("1.bias")), (Values{30, 31, 32}));
  EXPECT_EQ(values_of(file.tensors.at("1.num_batches_tracked")), Values{0});
  EXPECT_EQ(strip_wrappers(file), "");
  EXPECT_EQ(drop(file, "1."), 5);
  EXPECT_EQ(file.tensors.size(), 2u);
  EXPECT_EQ(read_checkpoint(golden + "protocol4.pt").tensors.size(), 2u);
}

/// timm's names back from those that Hugging Face gives the same model.
TEST_F(Convert, HuggingFacesVitGetsTimmsNames) {
  const std::pair<std::string, std::string> names[] = {
      {"cls_token", "vit.embeddings.cls_token"},
      {"patch_embed.proj.bias", "vit.embeddings.patch_embeddings.projection.bias"},
      {"pos_embed", "vit.embeddings.position_embeddings"},
      {"blocks.11.norm1.weight", "vit.encoder.layer.11.layernorm_before.weight"},
      {"blocks.11.norm2.weight", "vit.encoder.layer.11.layernorm_after.weight"},
      {"blocks.11.attn.proj.weight", "vit.encoder.layer.11.attention.output.dense.weight"},
      {"blocks.11.mlp.fc1.weight", "vit.encoder.layer.11.intermediate.dense.weight"},
      {"blocks.11.mlp.fc2.weight", "vit.encoder.layer.11.output.dense.weight"},
      {"norm.weight", "vit.layernorm.weight"},
      {"head.bias", "classifier.bias"},
  };
  Tensor numbers(DType::f32, {3, 2, 2});
  for (int i = 0; i < 12; ++i) numbers.data<float>()[i] = float(i);
  const auto part = [&](int i) { return View(numbers.data<float>() + 4 * i, {2, 2}); };
  Checkpoint hf;
  for (const auto& [timm, theirs] : names) hf.tensors[theirs] = part(0);
  const std::string attention = "vit.encoder.layer.11.attention.attention.";
  hf.tensors[attention + "query.weight"] = part(0).swapped(0, 1);
  hf.tensors[attention + "key.weight"] = part(1);
  hf.tensors[attention + "value.weight"] = part(2);
  Checkpoint few = hf, odd = hf;
  rename_hf_vit(hf);
  ASSERT_EQ(hf.tensors.size(), 11u);
  for (const auto& [timm, theirs] : names) EXPECT_TRUE(hf.tensors.contains(timm)) << timm;
  EXPECT_EQ(values_of(hf.tensors.at("blocks.11.attn.qkv.weight")),
            (Values{0, 2, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
  few.tensors.erase(attention + "key.weight");
  EXPECT_EQ(thrown<FileError>([&] { rename_hf_vit(few); }),
            "'vit.encoder.layer.11.attention.attention...' has no key beside it");
  odd.tensors[attention + "key.weight"] = View(numbers.data<float>(), {2, 3});
  EXPECT_EQ(thrown<FileError>([&] { rename_hf_vit(odd); }),
            "blocks.11.attn.qkv.weight cannot be made of tensors of shape (2, 2) and (2, 3)");
  few = hf;
  EXPECT_EQ(thrown<FileError>([&] { rename_hf_vit(few); }),
            "'blocks.11.attn.proj.weight' is no name of Hugging Face's ViT");
}

/// 2 layers of dim 4 and 2 heads over 1 of keys, hidden 3, 5 tokens, 2 positions; each weight its
/// own number.
TEST_F(Convert, Llama2cGetsTheNamesOfALanguageModel) {
  std::string bytes;
  for (const std::uint32_t size : {4u, 3u, 2u, 2u, 1u, 5u, 2u}) bytes += little(size);
  constexpr int embed = 20, norm = 8, q = 32, k = 16, gate = 24;
  const int count = embed + 2 * norm + 2 * q + 2 * k + 3 * gate + 4 + 4;
  for (int i = 0; i < count; ++i) {
    const auto number = float(i);
    bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
  }
  const Checkpoint file = read_checkpoint(made("tiny.bin", bytes));
  EXPECT_EQ(file.format, "llama2.c");
  EXPECT_EQ(file.metadata.at("kv_heads"), "1");
  ASSERT_EQ(file.tensors.size(), 2u + 2 * 7);
  const View qkv = file.tensors.at("blocks.1.attn.qkv.weight");
  EXPECT_EQ(to_string(qkv.sizes()), "(8, 4)");
  EXPECT_EQ(*qkv.at<float>({0, 0}), embed + norm + 16);          // q of layer 1
  EXPECT_EQ(*qkv.at<float>({4, 0}), embed + norm + q + 8);       // k
  EXPECT_EQ(*qkv.at<float>({7, 3}), embed + norm + q + k + 15);  // the end of v
  const View up = file.tensors.at("blocks.1.mlp.fc1.weight");
  EXPECT_EQ(to_string(up.sizes()), "(3, 4)");
  EXPECT_EQ(*up.at<float>({0, 0}), embed + 2 * norm + 2 * q + 2 * k + 2 * gate + 12);
  EXPECT_EQ(*file.tensors.at("norm.weight").at<float>({3}), count - 4 - 1);
  EXPECT_EQ(fault([&] { read_checkpoint(made("short.bin", bytes.substr(0, 60))); }).substr(0, 9),
            "short.bin");
}

TEST_F(Convert, SeveralDictionariesMustBeNamed) {
  EXPECT_EQ(read_checkpoint(golden + "two.pt", "b").tensors.at("w").count(), 3);
  EXPECT_EQ(thrown<FileError>([] { read_checkpoint(golden + "two.pt"); }),
            golden +
                "two.pt: holds several dictionaries of tensors: 'a', 'b'; say which with "
                "--take");
  EXPECT_EQ(thrown<FileError>([] { read_checkpoint(golden + "two.pt", "c"); }),
            golden + "two.pt: has no dictionary 'c'; it holds 'a', 'b'");
}

TEST_F(Convert, NoCodeRuns) {
  const std::string end =
      ", which no state dict needs, and foci runs no code: save the "
      "state_dict() alone";
  const std::string touch = at("ran");
  const std::string shell = "(X" + little(std::uint32_t(6 + touch.size())) + "touch " + touch;
  EXPECT_EQ(says("\x80\x02"
                 "cposix\nsystem\n" +
                 shell + "tR."),
            "a.pt: data.pkl: byte 2: names 'posix.system'" + end);
  EXPECT_EQ(says("\x80\x02"
                 "c__builtin__\neval\n" +
                 shell + "tR."),
            "a.pt: data.pkl: byte 2: names '__builtin__.eval'" + end);
  EXPECT_EQ(says("\x80\x04\x8c\x02os\x8c\x06system\x93" + shell + "tR."),
            "a.pt: data.pkl: byte 14: names 'os.system'" + end);
  EXPECT_EQ(says("\x80\x02"
                 "cargparse\nNamespace\n)\x81."),
            "a.pt: data.pkl: byte 2: names 'argparse.Namespace'" + end);
  EXPECT_EQ(says("ctorch\nShortStorage\n."),
            "a.pt: data.pkl: byte 0: 'torch.ShortStorage' holds a type that foci does not; it "
            "holds f64, f32, bf16, f16, i64, i32, u8 and bool");
  EXPECT_EQ(says("(ios\nsystem\n."),
            "a.pt: data.pkl: byte 1: has the opcode INST, which no state dict needs");
  EXPECT_EQ(says("ccollections\nOrderedDict\n)\x81."),
            "a.pt: data.pkl: byte 26: has the opcode NEWOBJ, which no state dict needs");
  EXPECT_EQ(says("ccollections\nOrderedDict\nX\1\0\0\0a\x85R."s),
            "a.pt: data.pkl: byte 32: calls collections.OrderedDict with 1 arguments that do not "
            "fit it");
  EXPECT_EQ(says("})R."), "a.pt: data.pkl: byte 2: calls what is no name");
  EXPECT_EQ(says("\x99."),
            "a.pt: data.pkl: byte 0: has the opcode 0x99, which no state dict "
            "needs");
  EXPECT_FALSE(std::filesystem::exists(touch));
}

TEST_F(Convert, BrokenPickles) {
  const std::vector<std::pair<std::string, std::string>> all = {
      {"", "is a zip file without data.pkl: torch.save did not write it"},
      {"}", "data.pkl: byte 1: wants 1 bytes, and 0 are left"},
      {".", "data.pkl: byte 0: takes from an empty stack"},
      {"t.", "data.pkl: byte 0: goes back to a mark that is not there"},
      {"(0.", "data.pkl: byte 1: has the opcode 0x30, which no state dict needs"},
      {"X\xff\xff\xff\xff.", "data.pkl: byte 0: wants 4294967295 bytes, and 1 are left"},
      {"cos", "data.pkl: byte 0: a name does not end"},
      {"h\5.", "data.pkl: byte 0: recalls value 5, which was never kept"},
      {"]K\1K\2s.", "data.pkl: byte 5: fills what is no dictionary"},
      {"}(K\1u.", "data.pkl: byte 4: a key has no value"},
      {"}K\1a.", "data.pkl: byte 3: fills what is no list"},
      {"\x8a\x09xxxxxxxxx.", "data.pkl: byte 0: has an integer of 9 bytes"},
      {"NQ.", "data.pkl: byte 1: has a persistent id that is no storage"},
      {"K\1K\2\x93.", "data.pkl: byte 4: names something by no text"},
      {"\x80\x09.", "data.pkl: byte 0: is of protocol 9; foci reads 2 to 5"},
      {"K\1.", "holds no dictionary of tensors; save a state_dict()"},
      {"}.", "holds no tensors where weights are looked for; it holds "},
      {"}X\1\0\0\0aK\1s."s, "holds no tensors where weights are looked for; it holds 'a'"},
  };
  for (const auto& [pickle, line] : all) EXPECT_EQ(says(pickle), "a.pt: " + line);
}

TEST_F(Convert, CyclesAndDepthDoNoHarm) {
  EXPECT_EQ(says("}q\0(X\5\0\0\0modelh\0u."s),  // {"model": itself}
            "a.pt: holds no tensors where weights are looked for; it holds 'model'");
  std::string deep(100000, ']');
  EXPECT_EQ(says(deep + std::string(99999, 'a') + "."),
            "a.pt: holds no dictionary of tensors; save a state_dict()");
  EXPECT_EQ(says(std::string((1 << 22) + 1, 'N') + "."),
            "a.pt: data.pkl: byte 4194304: has more than 4194304 values");
}

TEST_F(Convert, TensorsStayInTheirStorage) {
  const auto with = [&](const TensorAt& tensor) {
    const std::string path = made("t.pt", archive(state_dict(tensor), {{"data/0", "12345678"}}));
    return fault([&] { read_checkpoint(path); });
  };
  const std::string leaves = " leaves its storage of 2 numbers";
  EXPECT_EQ(with({.sizes = {3}, .strides = {1}}),
            "t.pt: 'w' of shape (3), strides (1) and offset 0" + leaves);
  EXPECT_EQ(with({.offset = 1, .sizes = {2}, .strides = {1}}),
            "t.pt: 'w' of shape (2), strides (1) and offset 1" + leaves);
  EXPECT_EQ(with({.offset = -1, .sizes = {1}, .strides = {1}}),
            "t.pt: 'w' of shape (1), strides (1) and offset -1" + leaves);
  EXPECT_EQ(with({.sizes = {2, 2}, .strides = {1, 1}}),
            "t.pt: 'w' of shape (2, 2), strides (1, 1) and offset 0" + leaves);
  EXPECT_EQ(with({.sizes = {2}, .strides = {1 << 30}}),
            "t.pt: 'w' of shape (2), strides (1073741824) and offset 0" + leaves);
  EXPECT_EQ(with({.sizes = {1 << 30}, .strides = {0}}).substr(0, 56),
            "t.pt: 'w' of shape (1073741824) is too large for a file ");
  EXPECT_EQ(with({.sizes = {-1}, .strides = {1}}),
            "t.pt: 'w' has a size or stride that is no whole number");
  EXPECT_EQ(with({.sizes = {1, 1}, .strides = {1}}), "t.pt: 'w' has 2 sizes and 1 strides");
  EXPECT_EQ(with({.sizes = {1, 1, 1, 1, 1, 1}, .strides = {1, 1, 1, 1, 1, 1}}),
            "t.pt: 'w' has 6 axes; foci holds at most 5");
  EXPECT_EQ(with({.key = "1", .sizes = {1}, .strides = {1}}), "t.pt: storage '1' is missing");
  EXPECT_EQ(with({.count = 1, .sizes = {1}, .strides = {1}}),
            "t.pt: storage '0' has 8 bytes; 1 numbers of f32 need 4");
  EXPECT_EQ(with({.count = 1 << 30, .sizes = {1}, .strides = {1}}).substr(0, 45),
            "t.pt: storage '0' says it has 1073741824 numb");
}

TEST_F(Convert, BrokenZips) {
  const std::string good =
      archive(state_dict({.sizes = {2}, .strides = {1}}), {{"data/0", "12345678"}});
  EXPECT_EQ(read_checkpoint(made("good.pt", good)).tensors.at("w").count(), 2);
  const auto with = [&](const std::string& bytes) {
    return fault([&] { read_checkpoint(made("z.pt", bytes)); });
  };
  const auto changed = [&](const std::string& mark, std::size_t at, const std::string& bytes) {
    std::string copy = good;
    return copy.replace(good.find(mark) + at, bytes.size(), bytes);
  };
  EXPECT_EQ(with(good.substr(0, 90)),
            "z.pt: is a zip file that ends early, at byte 90: it has no directory");
  EXPECT_EQ(with(changed("PK\1\2", 10, "\10")),
            "z.pt: 'a/data.pkl' is compressed; torch compresses nothing: unpack the file and pack "
            "it with zip -0");
  EXPECT_EQ(with(changed("PK\1\2", 8, "\1")), "z.pt: 'a/data.pkl' is encrypted");
  EXPECT_EQ(with(changed("PK\1\2", 0, "PK\1\3")).substr(0, 42),
            "z.pt: its zip directory is corrupt at byte");
  EXPECT_EQ(with(changed("PK\1\2", 42, "\1")),
            "z.pt: 'a/data.pkl' should begin at byte 1, and "
            "does not");
  EXPECT_EQ(with(changed("PK\1\2", 20, "\xff\xff\xff\1\xff\xff\xff\1")).substr(0, 55),
            "z.pt: 'a/data.pkl' has 33554431 bytes from byte 40 on, ");
  EXPECT_EQ(with(changed("PK\5\6", 10, "\xff\xfe")).substr(0, 38),
            "z.pt: its zip directory of 65279 entri");
  EXPECT_EQ(with(zipped({{"a/data.pkl", "}."}, {"a/data.pkl", "}."}})),
            "z.pt: has two entries 'a/data.pkl'");
  EXPECT_EQ(with(zipped({{"a/data.pkl", "}."}, {"a/constants.pkl", "N."}})),
            "z.pt: is a TorchScript program; save its state_dict() instead");
  EXPECT_EQ(with(zipped({{"a/data.pkl", "}."}, {"a/byteorder", "big"}})),
            "z.pt: has the byte order 'big'; foci reads little");
  EXPECT_EQ(with("cos\nsystem\n(tR."),
            "z.pt: begins with 'cos\\x0a': it is no file of torch.save, and safetensors end in "
            ".safetensors");
  std::string twice = good;  // both entries at the same place
  const std::size_t second = twice.find("PK\1\2", twice.find("PK\1\2") + 1);
  twice.replace(second + 42, 4, std::string(4, '\0'));
  EXPECT_EQ(with(twice), "z.pt: 'a/data/0' overlaps another entry");
}

TEST_F(Convert, NamesAndStoragesAreChecked) {
  const std::string one = state_dict({.sizes = {2}, .strides = {1}});
  const auto with = [&](const std::string& pickle) {
    const std::string path = made("n.pt", archive(pickle, {{"data/0", "12345678"}}));
    return fault([&] { read_checkpoint(path); });
  };
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string pickle = one;
    return pickle.replace(pickle.find(from), from.size(), to);
  };
  const std::string item = one.substr(3, one.size() - 5);  // "w" and its tensor
  EXPECT_EQ(with("}" + item + "s" + item + "s."), "n.pt: has two tensors 'w'");
  EXPECT_EQ(with(changed(pickled("w"), pickled("\xff"))), "n.pt: the name '\\xff' is not UTF-8");
  EXPECT_EQ(with(changed(pickled("0"), "K\1")), "n.pt: has a storage without type, key or count");
  EXPECT_EQ(with(changed("tQ", "K\1tQ")),
            "n.pt: storage '0' is a view of another, which torch before 0.4 wrote");
  EXPECT_EQ(with(changed("tQ", "t")), "n.pt: 'w' has no storage or no offset");
}

TEST_F(Convert, BrokenEarlyFiles) {
  const std::string good = read_all(golden + "early.pt");
  const auto with = [&](const std::string& bytes) {
    const std::string path = made("e.pt", bytes);
    return fault([&] { read_checkpoint(path); });
  };
  for (std::size_t size = 15; size < good.size(); size += 7) {
    const std::string line = with(good.substr(0, size));
    EXPECT_TRUE(line.starts_with("e.pt: ")) << line;
  }
  EXPECT_EQ(with(good.substr(0, good.size() - 1)).substr(0, 40),
            "e.pt: ends early, at byte 1955: storage ");
  const std::string magic = good.substr(0, 15), version = "\x80\2M\xe9\3.",
                    little = "}X\15\0\0\0little_endian\x88s."s;
  EXPECT_EQ(with(magic + "K\1."), "e.pt: is of torch's version 1; foci reads 1001");
  EXPECT_EQ(with(magic + version + "}." + "}." + "]."),
            "e.pt: was written by a machine with another byte order");
  EXPECT_EQ(with(magic + version + little + "}." + "]X\1\0\0\0xa."s),
            "e.pt: storage 'x' belongs to no tensor");
  const std::string weights = state_dict({.sizes = {2}, .strides = {1}});
  EXPECT_EQ(
      with(magic + version + little + weights + "]X\1\0\0\0000a."s + "\3" + std::string(15, '\0')),
      "e.pt: byte 174: storage '0' does not have 2 numbers");
}

TEST_F(Convert, ADamagedStorageIsTold) {
  static std::string told;
  const WarningHandler before = set_warning_handler([](std::string_view text) { told = text; });
  std::string bytes = archive(state_dict({.sizes = {2}, .strides = {1}}), {{"data/0", "12345678"}});
  bytes[bytes.find("12345678")] = '0';
  read_checkpoint(made("d.pt", bytes));
  set_warning_handler(before);
  EXPECT_EQ(bare(told),
            "d.pt: 'a/data/0' does not have its checksum: it is damaged, or torch was "
            "told to write none");
}

}  // namespace
}  // namespace foci::data
