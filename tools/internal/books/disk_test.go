//go:build unix

package books

import (
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// mount gives the store a file system of its own, where that may be done: others' must not fill up.
func (k *soak) mount(dir string) {
	fs := filepath.Join(dir, "fs")
	if os.Mkdir(fs, 0o700) != nil {
		return
	}
	out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=1g,mode=700", "skep-books", fs).CombinedOutput()
	if k.tmpfs = err == nil; !k.tmpfs {
		k.t.Logf("no file system of its own, so no disk fills up: %s", out)
	}
}

func (k *soak) unmount(dir string) {
	if k.tmpfs {
		if out, err := exec.Command("umount", filepath.Join(dir, "fs")).CombinedOutput(); err != nil {
			k.t.Errorf("umount: %s", out)
		}
	}
}

// fill takes all room of the file system for a while.
func (k *soak) fill() error {
	if !k.tmpfs {
		return nil
	}
	path := filepath.Join(filepath.Dir(k.s.dir), "filler")
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer os.Remove(path)
	defer f.Close()
	for b := make([]byte, 1<<20); ; {
		if n, err := f.Write(b); err != nil || n < len(b) {
			break
		}
	}
	time.Sleep(time.Duration(500+k.rng.IntN(1500)) * time.Millisecond) // while clients go on
	return nil
}
