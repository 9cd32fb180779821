/* SPDX-License-Identifier: Apache-2.0 */
/* Marks what libfoci exports; everything else stays hidden. */
#ifndef FOCI_EXPORT_H
#define FOCI_EXPORT_H

#if defined(__GNUC__)
#define FOCI_API __attribute__((visibility("default")))
#else
#define FOCI_API
#endif

#endif
