//go:build !linux

package store

// dirIdentity is what tells a directory from a copy of it; here nothing does, and a device outside
// the directory is opened where it was last seen, unless another store's directory has it or a copy
// has taken it.
func dirIdentity(string) string { return "" }

func hardLinked(string) bool { return false }
