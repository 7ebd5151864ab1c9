// Package monitor looks at every drive several times a second, has it judged (package health) and does what follows:
// it has the store fence it, read around it, and let it back in.
//
// A drive is judged by what it did, by the bytes it gave that were not what was written, and by what becomes of its
// file, which somebody may remove, move or replace while it is open. One that is not well is probed: a page is read
// and, where its writes or its bytes were at fault, written and flushed. So is, to be read, one that is idle while
// another does not answer.
package monitor
