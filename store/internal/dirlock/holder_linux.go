package dirlock

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/skepkv/skep/store/internal/paths"
)

// mostOpeners is how many are named.
const mostOpeners = 8

// openersOf names the processes that have a file open, as far as this one may look.
func openersOf(path string) (out []string) {
	path = paths.Real(path)
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	seen := map[string]bool{}
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err != nil || to != path {
			continue
		}
		pid := strings.Split(fd, "/")[2]
		if seen[pid] || len(out) == mostOpeners {
			continue
		}
		seen[pid] = true
		comm, _ := os.ReadFile("/proc/" + pid + "/comm")
		out = append(out, fmt.Sprintf("process %s (%s)", pid, bytes.TrimSpace(comm)))
	}
	return out
}
