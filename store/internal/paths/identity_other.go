//go:build !linux

package paths

// Identity is what tells a directory from a copy of it; here nothing does, and a device outside
// the directory is opened where it was last seen, unless another store's directory has it or a copy
// has taken it.
func Identity(string) string { return "" }

// HardLinked says whether a file has another name; here nobody knows.
func HardLinked(string) bool { return false }

// Device is what the device at path is known by: the path without symbolic links.
func Device(path string) string { return Real(path) }
