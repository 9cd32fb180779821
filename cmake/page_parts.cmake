# SPDX-License-Identifier: Apache-2.0
# Run by the build (cmake -DTO= -DFROM= -DSCRIPTS= -DCHARTS= -P): writes the parts of the page as
# bytes into a C++ source, with the SHA-256 that the page's policy names them by. The same files
# give the same source.
function(part name path)
  file(READ ${path} bytes HEX)
  file(SHA256 ${path} hash)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
  file(APPEND ${TO} "const unsigned char ${name}_bytes[] = {${bytes}0};\n"
    "}\nextern const std::string_view ${name}(reinterpret_cast<const char*>(${name}_bytes), "
    "sizeof ${name}_bytes - 1);\n"
    "extern const std::string_view ${name}_sha256 = \"${hash}\";\nnamespace {\n")
endfunction()

# One closure: what a file of the page names is seen by the others and by nobody else.
set(script ${TO}.js)
file(WRITE ${script} "(() => {\n'use strict';\n")
string(REPLACE "," ";" names "${SCRIPTS}")
foreach(name ${names})
  file(READ ${FROM}/${name} text)
  file(APPEND ${script} "${text}")
endforeach()
file(APPEND ${script} "})();\n")
set(charts ${CHARTS})
if(NOT charts)
  set(charts ${TO}.none)
  file(WRITE ${charts} "")
endif()
foreach(path ${script} ${charts})
  file(READ ${path} text)
  string(FIND "${text}" "</script" ends)
  if(NOT ends EQUAL -1)
    message(FATAL_ERROR "${path} holds </script, which would end its block in the page")
  endif()
endforeach()

file(WRITE ${TO} "#include <string_view>\nnamespace foci::report::parts {\nnamespace {\n")
part(page ${FROM}/page.html)
part(style ${FROM}/page.css)
part(script ${script})
part(charts ${charts})
file(APPEND ${TO} "}\n}\n")
