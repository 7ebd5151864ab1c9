// Package top shows a store at work: a frame of text a second, from what the store's
// admin socket says.
//
// What is shown is a pure function of two Stats and the time between them (Frame), so
// that every line of it can be tested; the loop around it (Run) asks, draws and reads
// keys.
//
// Invariants:
//
//   - No line is wider than the width asked for, 80 columns at least.
//   - A frame is drawn over the last one, line by line, each ending in "erase to the end
//     of the line": nothing is cleared first, so nothing flickers.
//   - However Run ends, the terminal is as it was.
package top
