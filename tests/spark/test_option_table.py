"""The table of options."""

from rmq_spark.spark.options.table import OPTIONS, Use


def test_names_differ_in_more_than_their_case():
    assert len({name.lower() for name in OPTIONS}) == len(OPTIONS)


def test_aliases_lead_to_options_that_are_none():
    for name, option in OPTIONS.items():
        assert option.uses
        assert option.meaning
        if option.alias_of is not None:
            assert OPTIONS[option.alias_of].alias_of is None, name


def test_every_use_has_its_required_options():
    for use in Use:
        assert use in OPTIONS["namesrvAddr"].uses
        assert use in OPTIONS["topic"].uses
