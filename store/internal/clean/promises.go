package clean

import (
	"time"

	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/space"
)

// promise notes what the catalog says for a group that is being freed: until the devices say it,
// a rebuild does not know it. So it is the first that the cleaner does with the room there is then.
func (c *Cleaner) promise(list []catalog.Intent) {
	if len(list) == 0 {
		return
	}
	if !c.promised {
		c.promised = true
		c.Logs.Intents.Begin() // Close waits for it
	}
	c.Logs.Intents.Add(list...)
}

// keepPromises writes to the cleaner's own group what was promised; the segments that are free
// now serve if it has none open. False: there is no room yet.
func (c *Cleaner) keepPromises() bool {
	switch {
	case !c.promised:
		return true
	case !c.Space.KeptHasRoom():
		return false
	}
	if list := c.Logs.Intents.Take(); len(list) > 0 {
		c.Logs.CarryOutTo(c.Context, space.Kept, 0, list)
	}
	if none := c.Logs.Intents.Tried(); !none {
		return false
	}
	c.promised = false
	c.Logs.Intents.Tried()
	return true
}

// end keeps what was promised before the cleaner ends, if what it cleaned can be had yet.
func (c *Cleaner) end() {
	wait := time.Millisecond
	for c.Context.Err() == nil && c.Rows.Failed() == nil && !c.keepPromises() && c.Space.Emptying() {
		time.Sleep(wait)
		c.Space.Regain()
		wait = min(2*wait, time.Second/8) // a drive may refuse to be told, and each refusal is logged
	}
	if c.promised {
		c.Logs.Intents.Tried()
	}
}
