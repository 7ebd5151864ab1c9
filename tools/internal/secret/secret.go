// Package secret looks at files with secrets in them.
package secret

import (
	"os"
	"runtime"
)

// Close is the command that closes a file which everybody on the machine may read or change now. Empty: it is closed,
// or nobody can say.
func Close(path string) string {
	if path == "" || runtime.GOOS == "windows" {
		return ""
	}
	st, err := os.Stat(path)
	if err != nil || !st.Mode().IsRegular() || st.Mode().Perm()&0o006 == 0 {
		return ""
	}
	return "chmod o-rw " + path
}
