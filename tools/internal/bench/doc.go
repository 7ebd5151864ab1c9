// Package bench measures the store beside what bounds it.
//
// Every measurement of ours stands next to one of the limit: fio on the same devices,
// or on fresh files in the same directory, with the same sizes and depth and with
// huge-page, fixed buffers; where fio is missing the same I/O issued raw, and the
// result says which. The two take turns, round by round, so that a noisy machine is
// noisy for both; what is reported is the median of at least seven rounds and the
// ratio of medians, and every sample is kept.
//
// Invariants:
//
//   - What was restored in the rounds was compared byte by byte once before them;
//     during them the store's own checksums are on.
//   - CPU is that of the whole process (ours) or as fio counts it for its jobs between
//     start and end of their I/O, so that fio's start-up is not held against it.
//   - Nothing is left behind: stores and files are made in a directory of their own
//     under Options.Dir and removed.
package bench
