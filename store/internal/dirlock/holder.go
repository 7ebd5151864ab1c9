package dirlock

import (
	"fmt"
	"os"
	"strings"
)

// heldBy says who has the lock that a process wrote its name on. One that has ended may have left it to
// a process that it had forked, which has its file open still.
func heldBy(name, path string) string {
	var pid int
	name = strings.TrimSpace(name)
	n, _ := fmt.Sscanf(name, "process %d ", &pid)
	host, _ := os.Hostname()
	ended := n == 1 && strings.Contains(name, " on "+host+" since ") && !isAlive(pid)
	if name != "" && !ended {
		return "held by " + name
	}
	who := strings.Join(openersOf(path), ", ")
	switch {
	case ended && who != "":
		return "held by " + who + ", forked from " + name + ", which has ended"
	case ended:
		return "held by a process that was forked from " + name + ", which has ended"
	case who != "":
		return "held by " + who
	}
	return "held by a process that has not said who it is"
}
