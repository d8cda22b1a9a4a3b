from conveyor.testing.contracts.survey import SurveyContract


class TestSurvey(SurveyContract):
    pass
