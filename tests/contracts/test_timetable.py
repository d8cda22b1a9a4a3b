from conveyor.testing.contracts.timetable import TimetableContract


class TestTimetable(TimetableContract):
    pass
