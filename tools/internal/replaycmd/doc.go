// Package replaycmd is the command replay: of skep, and, hidden, of skep-bench. It reads flags and the trace, opens the
// store, has package replay do the work, and prints what came of it.
package replaycmd
