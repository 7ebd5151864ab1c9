package monitor

import (
	"os"
	"sync/atomic"
	"time"
)

// file is the file of a drive, which somebody may remove, move or replace while it is
// open: then what is written to it is lost when it is closed.
type file struct {
	path    string
	was     os.FileInfo
	gone    atomic.Bool
	looking atomic.Bool // a file system may take its time; the monitor does not wait for it
	looked  time.Time
}

// watch is nil for what is no regular file, or is not there: some tests have such devices.
func watch(path string) *file {
	st, err := os.Stat(path)
	if err != nil || !st.Mode().IsRegular() {
		return nil
	}
	return &file{path: path, was: st, looked: time.Now()}
}

// unlinked says whether the file is known not to be where it was; it looks again now and then.
func (f *file) unlinked(every time.Duration) bool {
	if f == nil {
		return false
	}
	if time.Since(f.looked) >= every && f.looking.CompareAndSwap(false, true) {
		f.looked = time.Now()
		go func() { // ends with the look
			defer f.looking.Store(false)
			st, err := os.Stat(f.path)
			if err == nil || os.IsNotExist(err) { // another error says nothing of the file
				f.gone.Store(err != nil || !os.SameFile(st, f.was))
			}
		}()
	}
	return f.gone.Load()
}
