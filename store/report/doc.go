// Package report is what maintenance of a store says it found and did. Package store gives these types out under its own
// names; they are here so that the parts of it that do the work can say it, too.
package report
