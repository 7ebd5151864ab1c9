// Package admission decides which Cache blocks go to the drives.
//
// Writing wears drives, and most of what is put is never asked for. So accepted blocks wait in the DRAM tier until
// they have been used, or must leave, and what is then admitted keeps to a budget of bytes a day. What was refused is
// remembered by its key: who puts it again shows that it was worth writing. A promise comes before the budget.
package admission
