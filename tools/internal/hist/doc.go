// Package hist counts latencies in fixed memory.
//
// A [Hist] has one counter for each of 32 equal steps between a power of two
// and the next (the layout of Gil Tene's HdrHistogram), over the whole range
// of a time.Duration. Recording is a shift and an increment and allocates
// nothing. Invariants:
//
//   - Count, Min and Max are exact; Sum is added up as a float64.
//   - A quantile differs from the exact one (nearest rank) by at most
//     [RelativeError] of it, or half a nanosecond; the 0- and 1-quantiles are
//     exact.
//   - Merging histograms and recording everything into one give equal results.
//
// A Hist takes 15 KiB and has no lock: give each worker its own and merge them
// when they are done.
package hist
