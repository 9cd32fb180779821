// SPDX-License-Identifier: Apache-2.0
// Small sets for the tasks: a text, labelled text, time series, images with masks.
#pragma once

#include "train/child.hpp"

#include <foci/data.hpp>
#include <foci/image.hpp>

namespace train_test {

inline std::string made_folder(const std::string& name) {
  fs::create_directories(folder().file(name));
  return folder().file(name);
}

/// 200 lines of seven words, which a pattern makes.
inline const std::string& text_file() {
  static const std::string path = [] {
    const Words words = {"one", "two", "red", "fox", "sees", "a", "dog"};
    std::string text;
    for (std::size_t i = 0; i < 200; ++i) {
      for (std::size_t k = 0; k < 4 + i % 3; ++k) text += words[(i * i + k) % 7] + " ";
      text += "\n";
    }
    write(folder().file("made.txt"), text);
    return folder().file("made.txt");
  }();
  return path;
}

/// The class is the word that comes more than once; lengths differ.
inline const std::string& tsv_folder() {
  static const std::string path = [] {
    const std::string made = made_folder("tsv");
    for (const auto& [name, count] : {std::pair("train", 48), {"test", 20}}) {
      std::string lines;
      for (int i = 0; i < count; ++i) {
        lines += i % 2 == 0 ? "up\t( u u " : "down\t( d d ";
        for (int k = 0; k < i % 5; ++k) lines += "x ";
        lines += ")\n";
      }
      write(made + "/" + name + ".tsv", lines);
    }
    return made;
  }();
  return path;
}

/// Rising or falling, of 4 to 6 steps.
inline const std::string& ts_folder() {
  static const std::string path = [] {
    const std::string made = made_folder("ts");
    for (const auto& [name, count] : {std::pair("TRAIN", 24), {"TEST", 8}}) {
      std::string lines =
          "@problemName Lines\n@timeStamps false\n@univariate true\n@equalLength false\n"
          "@classLabel true rise fall\n@data\n";
      for (int i = 0; i < count; ++i) {
        for (int k = 0; k < 4 + i % 3; ++k)
          lines += (k > 0 ? "," : "") + std::to_string(i % 2 == 0 ? k : 5 - k);
        lines += i % 2 == 0 ? ":rise\n" : ":fall\n";
      }
      write(made + "/Lines_" + name + ".ts", lines);
    }
    return made;
  }();
  return path;
}

/// CamVid's layout: two colours side by side, their classes as masks, a column without.
inline const std::string& pair_folder() {
  static const std::string path = [] {
    const std::string made = made_folder("pairs");
    for (const auto& [name, count] : {std::pair(std::string("train"), 12), {"test", 4}}) {
      fs::create_directories(made + "/" + name);
      fs::create_directories(made + "/" + name + "annot");
      for (int i = 0; i < count; ++i) {
        foci::data::Image image(20, 24, 3), mask(20, 24, 1);
        for (int y = 0; y < 20; ++y) {
          for (int x = 0; x < 24; ++x) {
            const bool left = x < 6 + i % 8;
            image.at(y, x)[left ? 0 : 2] = 250;
            *mask.at(y, x) = x == 0 ? 11 : left ? 3 : 7;
          }
        }
        const std::string file = "/" + std::to_string(i) + ".png";
        foci::data::write_png(made + "/" + name + file, image);
        foci::data::write_png(made + "/" + name + "annot" + file, mask);
      }
    }
    return made;
  }();
  return path;
}

}  // namespace train_test
