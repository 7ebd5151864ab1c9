// Package sparsebench replays recorded attention, and compares strategies of choosing, placing and reading single KV
// entries: the package's own and those of papers, from models of drives or from real ones.
//
// A Trace is one document: which entries each step of its questions activated. Half of the questions are profiled, a
// quarter tunes, a quarter judges (scene.go). A strategy makes choices of entries and their places (strategy.go); what
// one step then reads is measured by a drive's model or by reads (measure.go, native.go). Generate makes longer
// contexts of a recorded one (generate.go).
package sparsebench
