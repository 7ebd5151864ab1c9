// Package servecmd is the command serve: of skep, and, hidden, of skep-bench, whose benchmarks start servers of
// their own. It reads flags, has package serve do the work, and prints where it listens.
package servecmd
