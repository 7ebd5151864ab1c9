package memory

import (
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Limit is how much memory the system gives this process at most, by its control groups (of version 1
// and 2) and all above them. 0: nothing is limited. A process that takes more is killed without a word.
func Limit() int64 { return limitIn(os.DirFS("/")) }

// Within is want, or a part of limit where that is less: limit/part, in whole pages, since an arena takes no other size
// and limits are whatever people write. A limit of 0 is none.
func Within(want, limit, part int64) int64 {
	if limit <= 0 {
		return want
	}
	return min(want, Pages(limit/part))
}

// Pages is n, which is 0 or more, in whole pages: of a budget the rest of a page is of no use to an arena.
func Pages(n int64) int64 { return n &^ (PageSize - 1) }

// unlimited is where version 1's number for no limit is beyond: it is the largest multiple of a page.
const unlimited = 1 << 60

// limitIn is the least limit of any group that the process of root's /proc/self is in.
func limitIn(root fs.FS) int64 {
	groups, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return 0
	}
	mounts, err := fs.ReadFile(root, "proc/self/mountinfo")
	if err != nil {
		return 0
	}
	least := int64(unlimited)
	for line := range strings.Lines(string(groups)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3) // number, controllers, path
		if len(f) < 3 {
			continue
		}
		kind, file := "cgroup", "memory.limit_in_bytes"
		if f[1] == "" {
			kind, file = "cgroup2", "memory.max"
		} else if !slices.Contains(strings.Split(f[1], ","), "memory") {
			continue
		}
		for m := range strings.Lines(string(mounts)) {
			if below, at, ok := mountOf(m, kind); ok {
				least = min(least, limitAbove(root, at, below, f[2], file))
			}
		}
	}
	if least >= unlimited {
		return 0
	}
	return least
}

// mountOf reads a line of mountinfo: which part of the hierarchy of groups is mounted, and where.
func mountOf(line, kind string) (below, at string, ok bool) {
	before, after, _ := strings.Cut(line, " - ")
	f, what := strings.Fields(before), strings.Fields(after)
	if len(f) < 5 || len(what) < 3 || what[0] != kind {
		return "", "", false
	}
	if kind == "cgroup" && !slices.Contains(strings.Split(what[2], ","), "memory") {
		return "", "", false
	}
	return f[3], f[4], true
}

// limitAbove is the least limit of group and those above it, up to what is mounted.
func limitAbove(root fs.FS, at, below, group, file string) int64 {
	if rest, ok := strings.CutPrefix(group, strings.TrimSuffix(below, "/")); ok {
		group = rest
	} else {
		group = "/" // the group is outside of what is mounted, as in a container: its own is the mount's root
	}
	least := int64(unlimited)
	for g := path.Clean("/" + group); ; g = path.Dir(g) {
		text, err := fs.ReadFile(root, strings.TrimPrefix(path.Join(at, g, file), "/"))
		if err == nil {
			if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n > 0 {
				least = min(least, n)
			}
		}
		if g == "/" {
			return least
		}
	}
}
