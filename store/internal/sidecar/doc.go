// Package sidecar keeps what some blocks say as rows of the catalog, where it is read without their drives.
//
// The block is what counts: rows are compared with its record's checksums when they are put and when they are read,
// and are of the version whose bytes were written when their edition says. So nothing has to be in step: a rebuild
// brings back none, and who opens what they are of puts them again. Rows go
//
//	with their block       a delete or a purge takes them along in its commit
//	behind it              the sweep of every second, and every open, where it was evicted or lost
//	after a crash in Put   pieces that no root names: the next open
package sidecar
