//go:build unix

package catalog

import "golang.org/x/sys/unix"

// descriptorLimit is how many descriptors this process may have. The Go runtime has raised the soft limit to
// the hard one.
func descriptorLimit() int {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) != nil {
		return mostOpenFiles * 4
	}
	return int(min(uint64(l.Cur), 1<<30))
}
