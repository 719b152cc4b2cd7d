"""The command line is linked so that its code lies at random addresses and its tables of functions are read-only."""

import os
import struct
import unittest

ET_DYN, PT_DYNAMIC, PT_GNU_STACK, PT_GNU_RELRO, PF_X = 3, 2, 0x6474E551, 0x6474E552, 1
DT_FLAGS, DF_BIND_NOW = 30, 8


class Hardening(unittest.TestCase):
    def setUp(self):
        with open(os.environ["HEED_BINARY"], "rb") as file:
            self.bytes = file.read()
        table, size, count = struct.unpack_from("<Q", self.bytes, 32)[0], *struct.unpack_from("<HH", self.bytes, 54)
        # (type, flags, offset, address, physical address, bytes in the file, ...) of each program header
        self.headers = [struct.unpack_from("<IIQQQQQQ", self.bytes, table + i * size) for i in range(count)]

    def header(self, kind):
        found = [header for header in self.headers if header[0] == kind]
        self.assertEqual(len(found), 1)
        return found[0]

    def test_position_independent(self):
        self.assertEqual(struct.unpack_from("<H", self.bytes, 16)[0], ET_DYN)

    def test_bound_when_loaded_and_read_only_then(self):
        self.header(PT_GNU_RELRO)
        dynamic = self.header(PT_DYNAMIC)
        entries = [struct.unpack_from("<QQ", self.bytes, dynamic[2] + at) for at in range(0, dynamic[5], 16)]
        self.assertTrue(any(tag == DT_FLAGS and value & DF_BIND_NOW for tag, value in entries))

    def test_stack_is_not_executable(self):
        self.assertFalse(self.header(PT_GNU_STACK)[1] & PF_X)


if __name__ == "__main__":
    unittest.main()
