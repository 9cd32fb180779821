#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# The first screen of a comparison's page as a picture, by Chromium:
#   tools/report_picture.py compare/report.html docs/report.png --height 900
# Needs chromium, chromedriver and selenium (tools/setup.sh browser).
import argparse
import base64
import pathlib
import shutil
import time

from selenium import webdriver
from selenium.webdriver.chrome.service import Service


def picture(page, width, height, dark):
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(flag)
    driver = webdriver.Chrome(service=Service(shutil.which("chromedriver")), options=options)
    try:
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})
        driver.get(page)
        time.sleep(1)  # figures are drawn once the layout is settled
        return base64.b64decode(driver.execute_cdp_cmd("Page.captureScreenshot", {})["data"])
    finally:
        driver.quit()


def main():
    words = argparse.ArgumentParser(description="The first screen of a page as a PNG.")
    words.add_argument("page", type=pathlib.Path)
    words.add_argument("png", type=pathlib.Path)
    words.add_argument("--width", type=int, default=1280)
    words.add_argument("--height", type=int, default=900)
    words.add_argument("--dark", action="store_true")
    said = words.parse_args()
    bytes_ = picture(said.page.resolve().as_uri(), said.width, said.height, said.dark)
    said.png.write_bytes(bytes_)
    print(f"{said.png}: {len(bytes_)} bytes")


if __name__ == "__main__":
    main()
